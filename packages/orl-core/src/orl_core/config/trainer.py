"""Section `trainer` of the configuration: options that every trainer obeys, and those of clusters alone.

`trainer.flags` go to the trainer as they are, but for secrets.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from orl_core.credentials import credentials_among
from orl_core.limits import NonNegative, Positive

Backend = Literal["slime", "miles", "trl"]


class SharedOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Set options that every trainer obeys; null leaves the choice to the trainer."""

    backend: Annotated[Backend, Meta(description="Trainer: trl on this machine, slime or miles on a cluster.")] = "trl"
    model: Annotated[
        str | None,
        Meta(description="Checkpoint's folder, model of a hub, or playground/GuessNumber: a tiny model made here."),
    ] = None
    lr: Annotated[Annotated[float, Meta(gt=0)] | None, Meta(description="Learning rate.")] = None
    n_samples: Annotated[Positive | None, Meta(description="Rollouts of each task, which make a group.")] = None
    rollout_batch_size: Annotated[Positive | None, Meta(description="Tasks of one step.")] = None
    num_rollout: Annotated[Positive | None, Meta(description="Steps of the whole run.")] = None
    max_response_len: Annotated[
        Positive | None, Meta(description="Most tokens that a rollout may add to its prompt.")
    ] = None
    max_context_len: Annotated[Positive | None, Meta(description="Most tokens of prompt and response together.")] = None
    temperature: Annotated[
        Annotated[float, Meta(gt=0)] | None, Meta(description="Sampling temperature of training rollouts.")
    ] = None
    save_interval: Annotated[Positive | None, Meta(description="Steps between checkpoints.")] = None
    task_data: Annotated[
        str | None,
        Meta(description="File that orl prepare wrote (default: every task, without regard to `weight`)."),
    ] = None
    wandb_project: Annotated[str | None, Meta(description="Project at Weights & Biases.")] = None
    wandb_run: Annotated[
        str | None,
        Meta(description="Name of the run at Weights & Biases (default: the name of the run or its project)."),
    ] = None
    wandb_mode: Annotated[
        Literal["online", "offline", "disabled"] | None,
        Meta(description="Mode of Weights & Biases (default: online where WANDB_API_KEY is set)."),
    ] = None
    seed: Annotated[NonNegative, Meta(description="Seed of tasks, weights and sampling.")] = 0
    flags: Annotated[
        dict[str, str | float | bool | None],
        Meta(description='Options of the trainer itself: {"--kl-loss-coef": 0.01}; true is a switch, null is none.'),
    ] = field(default_factory=dict[str, str | float | bool | None])

    def __post_init__(self) -> None:
        settings = {name: getattr(self, name) for name in self.__struct_fields__}
        if mistakes := "\n".join(credentials_among(settings, self.flags)):
            raise ValueError(mistakes)


class TrainerConfig(SharedOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Set options of trainers that run on a cluster, beside the shared ones; null leaves the choice to the trainer."""

    max_tokens_per_gpu: Annotated[Positive | None, Meta(description="Most tokens in one GPU's micro-batch.")] = None
    asynchronous: Annotated[
        bool, Meta(description="Play the next batch while training on this one, on GPUs of their own.")
    ] = field(default=False, name="async")
    num_gpus: Annotated[Positive | None, Meta(description="GPUs of each node (default: those that are found).")] = None
    actor_gpus: Annotated[
        Positive | None, Meta(description="GPUs of each node that train (default: all, shared with the engines).")
    ] = None
    rollout_gpus: Annotated[
        Positive | None, Meta(description="GPUs that serve the engines (default: all, shared with training).")
    ] = None
    actor_nodes: Annotated[Positive | None, Meta(description="Nodes that train (default: 1).")] = None
    tp: Annotated[Positive | None, Meta(description="Tensor-parallel size.")] = None
    train_backend: Annotated[
        Literal["megatron", "fsdp"] | None, Meta(description="Training backend, where the trainer has a choice.")
    ] = None
    advantage_estimator: Annotated[
        str | None, Meta(description="Advantage estimator, such as grpo, gspo or reinforce_plus_plus.")
    ] = None
    load: Annotated[
        str | None, Meta(description="Checkpoint to resume from (default: that of --save, where there is one).")
    ] = None
    save: Annotated[str | None, Meta(description="Folder for checkpoints (default: in the run's own folder).")] = None
    megatron_ckpt: Annotated[str | None, Meta(description="The model, converted for Megatron.")] = None
    model_args: Annotated[str | None, Meta(description="The trainer's file with the shape of the model.")] = None

    @property
    def cluster_options(self) -> list[str]:
        """List the options of clusters that are set."""
        names = self.__struct_fields__[len(SharedOptions.__struct_fields__) :]
        return [name for name in names if getattr(self, name) not in (None, False)]
