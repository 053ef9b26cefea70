"""The adapter for Tinker: LoRA trains on a server that speaks Tinker's protocol, and orl's own loop plays.

Importing it costs nothing: the SDK is imported when one of its functions is called. Its modules are internal.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NoReturn

from orl_tinker.options import DEFAULTS, NAME, TinkerOptions, check_options

if TYPE_CHECKING:
    from orl_core.config import RunConfig
    from orl_rollout.run_folder.contract import Conversion, Plan, Run

__all__ = ["plan", "train"]
default_model, defaults, sections = "", DEFAULTS, {NAME: TinkerOptions}
conversion_options = packages = ()


def resolve(config: RunConfig, extra: Sequence[str]) -> RunConfig:
    """Return `config` as it is, once its options are checked."""
    check_options(config, extra)
    return config


def train(run: Run) -> None:
    """Train adapters of `run.config.trainer.model` on the tasks of `run.task_data`; the files are listed in `Run`.

    Raises:
        ConfigError: a setting or the tasks cannot be used.
        EngineError: the server refuses, or is away for too long.
        RunAborted: too many rollouts ended in ERROR.
    """
    from orl_tinker.run import train as train_now

    train_now(run)


def plan(run: Run) -> Plan:
    """Return what `train` would do, without a request to the server.

    Raises:
        ConfigError: a setting or the tasks cannot be used.
    """
    from orl_tinker.run import plan_run

    return plan_run(run)


def plan_conversion(conversion: Conversion) -> NoReturn:
    """Refuse every conversion: the weights are on the server.

    Raises:
        ConfigError: always; says who has the weights.
    """
    from orl_core.errors import ConfigError

    raise ConfigError(
        f"{conversion.source}: the server has these weights. Download them with the SDK: `tinker checkpoint download`"
    )


convert = plan_conversion
