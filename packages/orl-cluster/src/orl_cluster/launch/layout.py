"""Input of a command line: the run, where the trainer is installed, and how the GPUs are shared.

Pure, and without a trainer's name: an adapter and `trainer_defaults` write the command line from a LaunchRequest.
"""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct
from orl_core.config import TrainerConfig
from orl_core.errors import ConfigError
from orl_rollout.run_folder.contract import Run

from orl_cluster.launch.argv import names_in, option_name, value_of, whole
from orl_cluster.launch.probe import Findings

GPUS, TENSOR_PARALLEL = 4, 4


class Installation(Struct, frozen=True, kw_only=True):
    """A trainer in its own Python, and the findings of the adapter's probe there."""

    trainer: str
    python: str
    found: Findings


class Layout(Struct, frozen=True, kw_only=True):
    """How the GPUs are shared: `actor` and `rollout` GPUs; with `colocate` they are the same."""

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


class LaunchRequest(Struct, frozen=True, kw_only=True):
    """Input of a command line. `tracked` tells whether Weights & Biases is used."""

    run: Run
    installation: Installation
    layout: Layout
    tracked: bool = False

    @property
    def trainer(self) -> TrainerConfig:
        """The options that all trainers share."""
        return self.run.config.trainer

    @property
    def names(self) -> list[str]:
        """The options that the user gave by the trainer's own names."""
        return [*(option_name(name) for name in self.trainer.flags), *names_in(self.run.extra)]

    @property
    def custom_config(self) -> Path:
        """The file of `--custom-config-path`, which hands the configuration over to the workers."""
        return (self.run.folder / f"{self.installation.trainer}.json").absolute()

    @property
    def save(self) -> Path:
        """The folder for checkpoints."""
        return Path(self.value("--save") or self.trainer.save or self.run.folder / "checkpoint").absolute()

    def value(self, name: str) -> str | None:
        """Return the user's own value of the trainer's option `name`: after `--`, else in the file; "" for a switch.

        A flag that the file takes away (false, null) counts as not given.
        """
        after = value_of(self.run.extra, name)
        filed = {option_name(flag): value for flag, value in self.trainer.flags.items()}.get(name)
        if after is not None or filed is None or filed is False:
            return after
        return "" if filed is True else str(whole(filed))


def layout_of(config: TrainerConfig, found: int, *, trains_in_parallel: bool = True) -> Layout:
    """Return the layout that the options ask for, on a machine where `found` GPUs were found (0: not known).

    `trains_in_parallel` tells whether `--tp` splits the model in training too, and not in the engines alone.

    Raises:
        ConfigError: half a division into trainers and engines, or a tensor-parallel size that does not divide.
    """
    divided = config.actor_gpus is not None or config.rollout_gpus is not None or config.asynchronous
    nodes = config.actor_nodes or 1
    gpus = config.num_gpus or found or GPUS
    if divided and config.actor_gpus is None and config.rollout_gpus is None:
        raise ConfigError("--async trains and plays on GPUs of their own: give --actor-gpus and --rollout-gpus")
    if divided and (config.actor_gpus is None or config.rollout_gpus is None):
        raise ConfigError("--actor-gpus and --rollout-gpus divide the GPUs: give both, or neither to share them")
    actor = config.actor_gpus or gpus
    rollout = config.rollout_gpus or gpus * nodes
    split = actor if trains_in_parallel or not divided else rollout  # a tensor-parallel group has to fit into it
    tensor = config.tp or next(size for size in (TENSOR_PARALLEL, 2, 1) if split % size == 0 and rollout % size == 0)
    if split % tensor or rollout % tensor:
        raise ConfigError(f"--tp {tensor} does not divide {actor} training and {rollout} engine GPUs: change --tp")
    per_node = config.num_gpus or (found or actor if divided else gpus)
    return Layout(
        nodes=nodes, per_node=per_node, actor=actor, rollout=rollout, colocate=not divided, tensor_parallel=tensor
    )
