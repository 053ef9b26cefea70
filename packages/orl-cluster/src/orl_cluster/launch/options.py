"""Options of the trainers on a cluster: the section `cluster`, defaults such as `lr`, and names of options.

Importing it is fast. The defaults are those of the cookbook's scripts. slime and miles have the same name for the same
option, and orl writes each name here alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from msgspec import Meta, field
from orl_core.config import TrainerConfig
from orl_core.config.checked import Checked
from orl_core.limits import NonNegative, Positive, Seconds

CLUSTER = "cluster"
# Options of the trainers that orl reads in several places.
CONTEXT, PER_GPU = "--rollout-max-context-len", "--max-tokens-per-gpu"
TENSOR_PARALLEL, PIPELINE_PARALLEL = "--tensor-model-parallel-size", "--pipeline-model-parallel-size"
CONTEXT_PARALLEL, SEQUENCE_PARALLEL = "--context-parallel-size", "--sequence-parallel"
ENGINE_SHARE, ENGINE_GPUS = "--sglang-mem-fraction-static", "--rollout-num-gpus-per-engine"
CUSTOM_CONFIG, CUSTOM_REWARD, GENERATE = "--custom-config-path", "--custom-rm-path", "--custom-generate-function-path"
CHECK = "--check-weight-update-equal"  # the first sync must leave the engines what they had loaded
REPLAY, ROUTER = "--use-rollout-routing-replay", "--sglang-router-ip"
ROLLOUT, PARTIAL, LORA = "--rollout-function-path", "--partial-rollout", "--lora-rank"
RUN_NAME = "--wandb-run-name"
STALL_MARGIN = 300.0  # seconds in which a healthy trainer neither plays nor waits for a server
DEFAULTS: Mapping[str, Any] = {
    "lr": 1e-5,
    "lr_decay_style": "constant",
    "weight_decay": 0.0,
    "adam_beta1": 0.9,
    "adam_beta2": 0.999,
    "advantage_estimator": "grpo",
    "n_samples": 16,
    "rollout_batch_size": 32,
    "num_rollout": 3000,
    "temperature": 1.0,
    "max_tokens_per_gpu": 8192,
    "save_interval": 10,
}


class ClusterOptions(Checked, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Set the options that trainers on a cluster share; null leaves the choice to the trainer."""

    asynchronous: Annotated[
        bool, Meta(description="Generate the next batch while training on this one, on separate GPUs.")
    ] = field(default=False, name="async")
    num_gpus: Annotated[
        Positive | None, Meta(description="GPUs of each node (default: all that are found; for a conversion, one).")
    ] = None
    actor_gpus: Annotated[Positive | None, Meta(description="Training GPUs of a node (default: all, shared).")] = None
    rollout_gpus: Annotated[Positive | None, Meta(description="GPUs of the engines (default: all, shared).")] = None
    actor_nodes: Annotated[Positive | None, Meta(description="Nodes that train (default: 1).")] = None
    tp: Annotated[Positive | None, Meta(description="Tensor-parallel size.")] = None
    train_backend: Annotated[
        Literal["megatron", "fsdp"] | None, Meta(description="Training backend, if the trainer has a choice.")
    ] = None
    save: Annotated[
        str | None,
        Meta(description="Folder for checkpoints, and to resume from (default: in the run's own folder)."),
    ] = None
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
    megatron_path: Annotated[str | None, Meta(description="Checkout of Megatron-LM (default: the installed one).")] = (
        None
    )


class CheckoutOptions(Checked, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Name the checkout of this trainer."""

    path: Annotated[
        str | None,
        Meta(description="Checkout of the trainer (default: the installed one).", extra={"option": "{section}-path"}),
    ] = None


def cluster_of(trainer: TrainerConfig) -> ClusterOptions:
    """Return the options that trainers on a cluster share."""
    return trainer.section(CLUSTER, ClusterOptions)
