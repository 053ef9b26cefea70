"""The sharing of GPUs (`--tp`, training, engines), and LaunchRequest, the input of a command line.

Pure, and without a trainer's name: an adapter and `trainer_defaults` write the command line from a LaunchRequest.
"""

from __future__ import annotations

import math
from pathlib import Path

from msgspec import Struct
from orl_core import ConfigError, TrainerConfig
from orl_core.estimators import OPTION, Estimator, estimator_named
from orl_rollout.run_folder.contract import CHECKPOINT, Run
from orl_rollout.run_folder.tracking import Tracking

from orl_cluster.launch.machine.installation import Installation
from orl_cluster.launch.options import (
    CONTEXT_PARALLEL,
    DEFAULTS,
    PIPELINE_PARALLEL,
    ClusterOptions,
    cluster_of,
    merge,
    names_in,
    number,
    option_name,
    value_of,
)

GPUS, TENSOR_PARALLEL = 4, 4


class Layout(Struct, frozen=True, kw_only=True):
    """The sharing of GPUs: `actor` and `rollout` GPUs; with `colocate` they are the same."""

    nodes: int
    per_node: int
    actor: int
    rollout: int
    colocate: bool
    tensor_parallel: int

    @property
    def total(self) -> int:
        """The GPUs of all nodes together."""
        return self.actor * self.nodes + (0 if self.colocate else self.rollout)

    @property
    def machines(self) -> int:
        """The nodes that hold all GPUs: those that train, and those of engines."""
        return -(-self.total // self.per_node)


def splits_of(run: Run) -> int:
    """Return the number of GPUs over which the user's context and pipeline parallelism split a sequence and a model."""
    words = merge({}, run.config.trainer.own_flags, run.extra)
    return math.prod(number(words, name) for name in (CONTEXT_PARALLEL, PIPELINE_PARALLEL))


class LaunchRequest(Struct, frozen=True, kw_only=True):
    """Input of a command line. `tracking` says how the run is reported to Weights & Biases.

    `mixture` tells whether the model is known to be a mixture of experts.
    """

    run: Run
    installation: Installation
    layout: Layout
    tracking: Tracking = Tracking()
    mixture: bool = False

    @property
    def trainer(self) -> TrainerConfig:
        """The options that all trainers obey, and our defaults."""
        return self.run.config.trainer.with_defaults(DEFAULTS)

    @property
    def cluster(self) -> ClusterOptions:
        """The options that trainers on a cluster share."""
        return cluster_of(self.run.config.trainer)

    @property
    def names(self) -> list[str]:
        """The options that the user gave by the trainer's own names."""
        return [*(option_name(name) for name in self.trainer.own_flags), *names_in(self.run.extra)]

    @property
    def custom_config(self) -> Path:
        """The file of `--custom-config-path`, which hands the configuration over to the workers."""
        return (self.run.folder / f"{self.installation.trainer}.json").absolute()

    @property
    def save(self) -> Path:
        """The folder for checkpoints."""
        return Path(self.value("--save") or self.cluster.save or self.run.folder / CHECKPOINT).absolute()

    @property
    def loads_own(self) -> bool:
        """Tell whether the run continues from the checkpoint in its own folder, if there is one."""
        load = self.value("--load") or self.trainer.load
        return not load or Path(load).expanduser().absolute() == self.save

    @property
    def estimator(self) -> Estimator:
        """The advantage estimator.

        Raises:
            ConfigError: orl does not know it.
        """
        return estimator_named(self.value(OPTION) or self.trainer.advantage_estimator or "")

    @property
    def words(self) -> list[str]:
        """The user's own options of the trainer: those in the file, then those after `--`."""
        return merge({}, self.trainer.own_flags, self.run.extra)

    def value(self, name: str) -> str | None:
        """Return the user's own value of the trainer's option `name`: after `--`, else in the file; "" for a switch.

        A flag that the file takes away (false, null) counts as not given.
        """
        return value_of(self.words, name)


def layout_of(
    config: ClusterOptions, available: int, *, trains_in_parallel: bool = True, other_splits: int = 1
) -> Layout:
    """Return the layout that the options ask for, on a machine where `found` GPUs were found (0: not known).

    `trains_in_parallel` tells whether `--tp` splits the model in training too, and not in the engines alone.
    `other_splits` is the number of GPUs over which context and pipeline parallelism split each tensor-parallel part.
    """
    divided = config.actor_gpus is not None or config.rollout_gpus is not None or config.asynchronous
    nodes = config.actor_nodes or 1
    gpus = config.num_gpus or available or GPUS
    if divided and (config.actor_gpus is None or config.rollout_gpus is None):
        raise ConfigError("--async and divided GPUs need two numbers: give both --actor-gpus and --rollout-gpus")
    actor = config.actor_gpus or gpus
    rollout = config.rollout_gpus or gpus * nodes
    split = actor if trains_in_parallel or not divided else rollout  # a tensor-parallel group has to fit into it
    training = actor * nodes
    sizes = [size for size in (TENSOR_PARALLEL, 2, 1) if split % size == 0 and rollout % size == 0]
    tensor = config.tp or next((size for size in sizes if training % (size * other_splits) == 0), sizes[-1])
    if split % tensor or rollout % tensor:
        raise ConfigError(f"--tp {tensor} does not divide {actor} training and {rollout} engine GPUs: change --tp")
    if trains_in_parallel and training % (tensor * other_splits):
        raise ConfigError(
            f"tensor parallel {tensor} x context and pipeline parallel {other_splits} does not divide {training} "
            "training GPUs: change --tp, or --context-parallel-size and --pipeline-model-parallel-size after `--`"
        )
    per_node = config.num_gpus or (available or actor if divided else gpus)
    return Layout(
        nodes=nodes, per_node=per_node, actor=actor, rollout=rollout, colocate=not divided, tensor_parallel=tensor
    )
