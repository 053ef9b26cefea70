"""The default trainer: orl's own, on one machine.

Rollouts are sampled by the model itself, or by SGLang or vLLM on the same GPU. `objective.py` shows what is optimised.

Importing it costs nothing: torch and transformers are imported when one of its functions is called. Its modules are
internal.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from orl_rollout.run_folder.contract import refuse_conversion

from orl_local.options import DEFAULTS, NAME, LocalOptions, own_options

if TYPE_CHECKING:
    from orl_core.config import RunConfig
    from orl_rollout.loop.engine import Engine
    from orl_rollout.run_folder.contract import Plan, Run

T = TypeVar("T")
__all__ = ["plan", "play_in_process", "train"]
default_model, defaults, sections = "", DEFAULTS, {NAME: LocalOptions}
conversion_options = packages = ()
convert = plan_conversion = partial(refuse_conversion, NAME)


def resolve(config: RunConfig, extra: Sequence[str]) -> RunConfig:
    """Return `config` as it is, once its options are checked."""
    own_options(config.trainer)
    return config


def train(run: Run) -> None:
    """Train `run.config.trainer.model` on the tasks of `run.task_data`; the files are listed in `Run`.

    A signal closes the sessions, writes what there is (`interrupted: true` in summary.json) and raises Interrupted.

    Raises:
        ConfigError: a setting, the model or the tasks cannot be used.
        RunAborted: too many rollouts ended in ERROR.
    """
    from orl_local.run import train as train_now

    train_now(run)


def plan(run: Run) -> Plan:
    """Return what `train` would do, once everything is checked that needs neither weights nor rollouts.

    Raises:
        ConfigError: a setting, the model or the tasks cannot be used.
    """
    from orl_local.planning import plan_run

    return plan_run(run)


def play_in_process(model: str, play: Callable[[Engine], Coroutine[Any, Any, T]]) -> T:
    """Answer on this thread what `play` asks of the checkpoint `model`; see `LocalEngine`.

    Raises:
        ConfigError: the model cannot be loaded.
    """
    from orl_local.engine.in_process_engine import play_in_process as play_now

    return play_now(model, play)
