"""Section `trainer` of the configuration: options that every trainer obeys, those of trl alone, and those of clusters.

`trainer.flags` go to the trainer as they are, but for secrets. They may be kept apart by trainer, so that one file runs
on all of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal, get_args

from msgspec import Meta, field, structs

from orl_core.config.checked import Checked, check_fields
from orl_core.credentials import credentials_among
from orl_core.limits import NonNegative, Positive, Seconds

MAX_LOGPROB_DIFFERENCE = 0.1  # in nats; healthy runs stay below 0.003: docs/evidence
Backend = Literal["slime", "miles", "trl"]
Decay = Annotated[float, Meta(ge=0, lt=1)]
Flag = str | float | bool | None
STALL_MARGIN = 300.0  # seconds in which a healthy trainer neither plays nor waits for a server
RolloutEngine = Annotated[
    str,
    Meta(
        pattern=r"^(auto|sglang|transformers|https?://[^@?#\s]*)\Z",
        title="auto, sglang, transformers, or an address (http or https, without login and query)",
    ),
]


class SharedOptions(Checked, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Set options that every trainer obeys; null leaves the choice to the trainer."""

    backend: Annotated[Backend, Meta(description="Trainer: trl on this machine, slime or miles on a cluster.")] = "trl"
    model: Annotated[
        str | None, Meta(description="Checkpoint: folder, folder of a run, name on a hub, or playground/GuessNumber.")
    ] = None
    load: Annotated[
        str | None,
        Meta(description="Checkpoint to resume from: its folder, or a run's (default on a cluster: that of --save)."),
    ] = None
    lr: Annotated[Annotated[float, Meta(gt=0)] | None, Meta(description="Learning rate.")] = None
    lr_decay_style: Annotated[
        Literal["constant", "linear", "cosine"] | None, Meta(description="Schedule of the learning rate.")
    ] = None
    weight_decay: Annotated[Annotated[float, Meta(ge=0)] | None, Meta(description="Weight decay of Adam.")] = None
    adam_beta1: Annotated[Decay | None, Meta(description="Decay rate of Adam's mean of gradients.")] = None
    adam_beta2: Annotated[Decay | None, Meta(description="Decay rate of Adam's mean of squared gradients.")] = None
    adam_eps: Annotated[Annotated[float, Meta(gt=0)] | None, Meta(description="Epsilon of Adam.")] = None
    advantage_estimator: Annotated[
        str | None,
        Meta(description="Advantage estimator: grpo or gspo; on a cluster also ppo, reinforce_plus_plus and others."),
    ] = None
    n_samples: Annotated[Positive | None, Meta(description="Rollouts of each task, which make a group.")] = None
    rollout_batch_size: Annotated[Positive | None, Meta(description="Tasks of one step.")] = None
    num_rollout: Annotated[Positive | None, Meta(description="Steps of the whole run.")] = None
    temperature: Annotated[Annotated[float, Meta(gt=0)] | None, Meta(description="Sampling temperature.")] = None
    max_tokens_per_gpu: Annotated[
        Positive | None,
        Meta(description="Most tokens in one GPU's micro-batch (default: 8192); trl trains a longer row alone."),
    ] = None
    save_interval: Annotated[Positive | None, Meta(description="Steps between checkpoints (default: 10).")] = None
    task_data: Annotated[str | None, Meta(description="File from orl prepare (default: all tasks, unweighted).")] = None
    wandb_project: Annotated[
        str | None, Meta(description="Project at Weights & Biases; reports the run there, offline without a key.")
    ] = None
    wandb_run: Annotated[
        str | None, Meta(description="Run name at Weights & Biases and OpenReward (default: the folder's).")
    ] = None
    wandb_mode: Annotated[
        Literal["online", "offline", "disabled"] | None,
        Meta(description="Mode of Weights & Biases (default: online if WANDB_API_KEY is set or you are logged in)."),
    ] = None
    max_logprob_difference: Annotated[
        float,
        Meta(
            gt=0,
            description="Mean difference between logprobs of training and of sampling that ends the run, as the median "
            "of 8 steps; so do 0.02 and ten times the first 8 steps. With trl, five times as much ends it in one step.",
        ),
    ] = MAX_LOGPROB_DIFFERENCE
    tensorboard: Annotated[
        bool, Meta(description="Write TensorBoard's files, to `tensorboard` in the run's folder.")
    ] = False
    seed: Annotated[
        NonNegative,
        Meta(
            description="Seed of tasks, weights and sampling; SGLang repeats samples if its inference is deterministic."
        ),
    ] = 0
    flags: Annotated[
        dict[str, Flag | dict[str, Flag]],
        Meta(
            description='Options of the trainer itself: {"--kl-loss-coef": 0.01}; true is a switch, null is none. Keep '
            "those of several trainers apart: {slime: {...}, miles: {...}, trl: {...}}."
        ),
    ] = field(default_factory=dict[str, Flag | dict[str, Flag]])

    def __post_init__(self) -> None:
        check_fields(self)
        if mistakes := "\n".join(self._mistakes()):
            raise ValueError(mistakes)

    def _mistakes(self) -> Iterator[str]:
        settings = {name: getattr(self, name) for name in self.__struct_fields__}
        yield from credentials_among(settings, self.flags)
        apart = {name.partition("=")[0]: flags for name, flags in self.flags.items() if isinstance(flags, dict)}
        for name, flags in apart.items():
            if name not in get_args(Backend):
                yield f"`flags` has `{name}`, which is no trainer: use {', '.join(get_args(Backend))}"
            yield from credentials_among({}, flags)
        if 0 < len(apart) < len(self.flags):
            yield f"`flags` has options beside `{next(iter(apart))}`: move each into the flags of a trainer"

    @property
    def own_flags(self) -> dict[str, Flag]:
        """The flags of `backend`."""
        given = self.flags.get(self.backend)
        if isinstance(given, dict):
            return given
        return {name: value for name, value in self.flags.items() if not isinstance(value, dict)}


class TrlOptions(SharedOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Set the options of trl alone, beside the shared ones. Trainers on a cluster have flags of their own for these."""

    engine: Annotated[
        RolloutEngine,
        Meta(
            description="Engine of rollouts: sglang on the GPU that trains, transformers in the training process, or "
            "the address of an SGLang that you serve. auto: sglang where it can run and the model is not tiny."
        ),
    ] = "auto"
    lora_rank: Annotated[
        Positive | None,
        Meta(description="Rank of LoRA adapters at every linear layer, which train alone; null trains all weights."),
    ] = None
    optimizer: Annotated[
        str | None,
        Meta(
            description="Optimizer, by transformers' names: adamw_8bit needs bitsandbytes (default: adamw_torch_fused)."
        ),
    ] = None

    def _mistakes(self) -> Iterator[str]:
        yield from super()._mistakes()
        if self.backend == "trl":
            return
        if self.engine != "auto":
            yield f"`engine` is an option of trl, and {self.backend} starts its own engines. Remove it"
        for name in ("lora_rank", "optimizer"):
            if getattr(self, name) is not None:
                yield f"`{name}` is an option of trl. For {self.backend}, remove it and use {self.backend}'s own flag"


class TrainerConfig(TrlOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Set options of trainers that run on a cluster, beside the others; null leaves the choice to the trainer."""

    asynchronous: Annotated[
        bool, Meta(description="Generate the next batch while training on this one, on separate GPUs.")
    ] = field(default=False, name="async")
    num_gpus: Annotated[Positive | None, Meta(description="GPUs of each node (default: all that are found).")] = None
    actor_gpus: Annotated[Positive | None, Meta(description="Training GPUs of a node (default: all, shared).")] = None
    rollout_gpus: Annotated[Positive | None, Meta(description="GPUs of the engines (default: all, shared).")] = None
    actor_nodes: Annotated[Positive | None, Meta(description="Nodes that train (default: 1).")] = None
    tp: Annotated[Positive | None, Meta(description="Tensor-parallel size.")] = None
    train_backend: Annotated[
        Literal["megatron", "fsdp"] | None, Meta(description="Training backend, where the trainer has a choice.")
    ] = None
    save: Annotated[str | None, Meta(description="Folder for checkpoints (default: in the run's own folder).")] = None
    megatron_ckpt: Annotated[str | None, Meta(description="The model, converted for Megatron.")] = None
    model_args: Annotated[str | None, Meta(description="The trainer's file with the shape of the model.")] = None
    memory_retries: Annotated[
        NonNegative | None,
        Meta(
            description="Most restarts of a run whose GPU memory ran out (default: 3). Each lowers one of: tokens of a "
            "GPU, context, the engines' share."
        ),
    ] = None
    stall_timeout: Annotated[
        Seconds,
        Meta(description="Seconds without a step, an answered turn or a growing checkpoint that end the run."),
    ] = 3600.0
    slime_path: Annotated[str | None, Meta(description="Checkout of slime (default: the installed one).")] = None
    miles_path: Annotated[str | None, Meta(description="Checkout of miles (default: the installed one).")] = None
    megatron_path: Annotated[str | None, Meta(description="Checkout of Megatron-LM (default: the installed one).")] = (
        None
    )

    @property
    def cluster_options(self) -> list[str]:
        """List the options of clusters that are set, by their keys in the file."""
        own = structs.fields(type(self))[len(TrlOptions.__struct_fields__) :]
        return [option.encode_name for option in own if getattr(self, option.name) != option.default]


def stall_mistakes(trainer: TrainerConfig, rollout_seconds: float) -> Iterator[str]:
    """Yield what is wrong with `stall_timeout` if a rollout may be silent for `rollout_seconds`."""
    least = rollout_seconds + STALL_MARGIN
    if trainer.backend != "trl" and trainer.stall_timeout < least:
        yield (
            f"`trainer.stall_timeout` is {trainer.stall_timeout:g}, below `rollout_timeout` + `patience` + "
            f"{STALL_MARGIN:g}: it would end a healthy run. Set it to {least:g} or more"
        )
