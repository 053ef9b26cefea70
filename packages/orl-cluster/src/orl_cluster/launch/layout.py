"""What a command line is made of: configuration, files, GPUs, and what the user said by the trainer's own names.

Pure, and without a trainer's name: adapters make a Request, `options` and the adapter write the command line from it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct
from orl_core.config import RunConfig, TrainerConfig
from orl_core.errors import ConfigError

from orl_cluster.launch.argv import names_in, option_name, text, value_of

GPUS, TENSOR_PARALLEL = 4, 4


class Files(Struct, frozen=True, kw_only=True):
    """Where the run's files are."""

    task_data: Path
    eval_data: Path | None
    custom_config: Path
    save: Path


class Layout(Struct, frozen=True, kw_only=True):
    """How the GPUs are shared: `actor` and `rollout` GPUs of which `colocate` says whether they are the same."""

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


class Request(Struct, frozen=True, kw_only=True):
    """What a command line is made of. `extra` is what stood after `--`; `tracked` says whether W&B is used."""

    config: RunConfig
    files: Files
    layout: Layout
    extra: tuple[str, ...] = ()
    tracked: bool = False

    @property
    def trainer(self) -> TrainerConfig:
        """The options that all trainers share."""
        return self.config.trainer

    @property
    def names(self) -> list[str]:
        """The options that the user gave by the trainer's own names."""
        return [*(option_name(name) for name in self.trainer.flags), *names_in(self.extra)]

    def value(self, name: str) -> str | None:
        """The user's own value of an option by the trainer's name: after `--`, else in the file; "" for a switch."""
        return given(self.trainer, self.extra, name)


def given(trainer: TrainerConfig, extra: Sequence[str], name: str) -> str | None:
    """As `Request.value`. A flag that the file takes away (false, null) counts as not given."""
    flags = {option_name(flag): value for flag, value in trainer.flags.items()}
    filed = flags.get(name)
    after = value_of(extra, name)
    if after is not None or filed is None or filed is False:
        return after
    return "" if filed is True else text(filed)


def layout_of(config: TrainerConfig, found: int, *, trains_in_parallel: bool = True) -> Layout:
    """The layout that the options ask for, on a machine where `found` GPUs were found (0: not known).

    `trains_in_parallel` says whether `--tp` splits the model in training too, and not in the engines alone.

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
    split = actor if trains_in_parallel or not divided else rollout  # what a tensor-parallel group has to fit into
    tensor = config.tp or next(size for size in (TENSOR_PARALLEL, 2, 1) if split % size == 0 and rollout % size == 0)
    if split % tensor or rollout % tensor:
        raise ConfigError(f"--tp {tensor} does not divide {actor} training and {rollout} engine GPUs")
    per_node = config.num_gpus or (found or actor if divided else gpus)
    return Layout(
        nodes=nodes, per_node=per_node, actor=actor, rollout=rollout, colocate=not divided, tensor_parallel=tensor
    )
