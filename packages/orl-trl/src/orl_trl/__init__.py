"""The embedded default trainer: TRL's GRPOTrainer on one machine, fed by orl's own loop.

Rollouts are sampled by the model itself, or by an SGLang on the same GPU.

Importing it costs nothing: torch, transformers and trl are imported when one of its functions is called.
Its modules are internal.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from orl_trl.options import DEFAULTS, NAME, TrlOptions, own_options

if TYPE_CHECKING:
    from orl_core.config import RunConfig
    from orl_rollout.loop.engine import Engine
    from orl_rollout.run_folder.contract import Conversion, Plan, Run

T = TypeVar("T")
__all__ = [
    "conversion_options",
    "convert",
    "default_model",
    "defaults",
    "packages",
    "plan",
    "plan_conversion",
    "play_in_process",
    "resolve",
    "sections",
    "train",
]
default_model, defaults, sections = "", DEFAULTS, {NAME: TrlOptions}
conversion_options: tuple[str, ...] = ()
packages: tuple[str, ...] = ()


def resolve(config: RunConfig, extra: Sequence[str]) -> RunConfig:
    """Return `config` as it is, once its options of trl are checked."""
    own_options(config.trainer)
    return config


def train(run: Run) -> None:
    """Train `run.config.trainer.model` with GRPO on the tasks of `run.task_data`; the files are listed in `Run`.

    A signal closes the sessions, writes what there is (`interrupted: true` in summary.json) and raises Interrupted.

    Raises:
        ConfigError: a setting, the model or the tasks cannot be used.
        RunAborted: too many rollouts ended in ERROR.
    """
    from orl_trl.training.training_run import train as train_now

    train_now(run)


def plan(run: Run) -> Plan:
    """Return what `train` would do, once everything is checked that needs neither weights nor rollouts.

    Raises:
        ConfigError: a setting, the model or the tasks cannot be used.
    """
    from orl_trl.run_plan.dry_run import plan_run

    return plan_run(run)


def convert(conversion: Conversion) -> None:
    """Refuse: see `plan_conversion`."""
    plan_conversion(conversion)


def plan_conversion(conversion: Conversion) -> Plan:
    """Refuse every conversion: TRL reads and writes Hugging Face checkpoints.

    Raises:
        ConfigError: always; says which command converts.
    """
    from orl_core.errors import ConfigError

    if conversion.checkpoint.format == "hf":
        raise ConfigError(f"{conversion.source}: trl reads this checkpoint as it is. Name it with --model")
    raise ConfigError(f"trl has no tool for {conversion.source}. Name the trainer that wrote it, or slime or miles")


def play_in_process(model: str, play: Callable[[Engine], Coroutine[Any, Any, T]]) -> T:
    """Answer on this thread what `play` asks of the checkpoint `model`; see `LocalEngine`.

    Raises:
        ConfigError: the model cannot be loaded.
    """
    from orl_trl.engine.local_model import play_in_process as play_now

    return play_now(model, play)
