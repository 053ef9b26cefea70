"""How many rollouts a step plays and an update trains: the options that say so, and how many Megatron needs."""

from __future__ import annotations

from collections.abc import Sequence

from orl_core.errors import ConfigError

from orl_cluster.launch.argv import Options, number, value_of
from orl_cluster.launch.command.layout import PIPELINE_PARALLEL, LaunchRequest
from orl_cluster.launch.options import CONTEXT_PARALLEL

TENSOR_PARALLEL = "--tensor-model-parallel-size"


def batch_options(request: LaunchRequest) -> Options:
    """Return the options of a step. Each update trains an equal share of its rollouts, one update all of them."""
    trainer = request.trainer
    return {
        "--rollout-batch-size": trainer.rollout_batch_size,
        "--n-samples-per-prompt": trainer.n_samples,
        "--num-steps-per-rollout": 1,
        "--global-batch-size": batch_size(request),
    }


def batch_size(request: LaunchRequest) -> int:
    """Return the number of rollouts of an update: as given, else those of a step, divided by its updates."""

    def size(name: str, ours: int | None) -> int:
        return number(request.value(name), name) or ours or 1

    trainer = request.trainer
    groups = size("--rollout-batch-size", trainer.rollout_batch_size)
    members = size("--n-samples-per-prompt", trainer.n_samples)
    return size("--global-batch-size", groups * members // size("--num-steps-per-rollout", 1))


def check_batch(argv: Sequence[str], gpus: int) -> None:
    """Check that an update has a rollout for each data-parallel rank of Megatron."""

    def size(name: str) -> int:
        return number(value_of(argv, name), name) or 1

    batch = size("--global-batch-size")
    ranks = gpus // (size(TENSOR_PARALLEL) * size(PIPELINE_PARALLEL) * size(CONTEXT_PARALLEL))
    if value_of(argv, TENSOR_PARALLEL) and batch < ranks:
        raise ConfigError(
            f"--global-batch-size {batch}: a step trains fewer rollouts than the {ranks} data-parallel ranks of "
            f"{gpus} training GPUs; raise --n-samples or --rollout-batch-size, or --tp"
        )
