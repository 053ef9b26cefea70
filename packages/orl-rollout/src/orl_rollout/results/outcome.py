"""An outcome: a trajectory with its reward and its data.

It knows no trainer, and has no effects but those of the user's own reward function, which is called here and nowhere
else.
"""

from __future__ import annotations

import importlib
import inspect
import math
from collections.abc import Callable
from contextlib import suppress
from functools import reduce
from typing import Any, cast

from msgspec import Struct, structs
from orl_core.config import EnvironmentConfig
from orl_core.datum import Datum, to_data
from orl_core.errors import ConfigError, OrlError, boundary
from orl_core.reward import clamp, reduce_reward
from orl_core.trajectory import StopReason, Trajectory

from orl_rollout.secrets.secrets import Scrubber

Reward = Callable[[Trajectory], float]
_UNJUDGED = frozenset({StopReason.ERROR, StopReason.ABORTED})  # what a reward function is not asked about


class Outcome(Struct, frozen=True, kw_only=True):
    """The result of one rollout. `success` says whether the reward reached the environment's `success_reward`.

    `datums` is empty where the engine never returned an id, and where the text echoes a secret (see `cleared`).
    """

    trajectory: Trajectory
    reward: float
    success: bool
    datums: tuple[Datum, ...]


def load_reward(name: str) -> Reward:
    """Load the user's reward function `module:function`.

    Raises:
        ConfigError: the module or the function cannot be loaded, or it does not take a trajectory; names both.
    """
    module, _, attribute = name.partition(":")
    with boundary(ConfigError, f"`reward`: loading `{attribute}` from module `{module}`"):
        function: Any = reduce(getattr, attribute.split("."), importlib.import_module(module))
        if not callable(function) or inspect.iscoroutinefunction(function):
            raise TypeError(f"{type(function).__name__} is no plain function of a trajectory")
        with suppress(ValueError):  # a builtin that does not say what it takes
            inspect.signature(function).bind(None)
    return cast("Reward", function)


def outcome_of(trajectory: Trajectory, config: EnvironmentConfig, reward: Reward | None = None) -> Outcome:
    """Judge and convert `trajectory`. One that ended in ERROR has reward 0.0 and is never a success.

    `reward` is the user's function, asked in place of the reduction and clamped like it. Total: where it raises, or
    does not return a finite number, the trajectory ends in ERROR and does not train. What ended in ERROR or ABORTED it
    is not asked about.
    """
    if reward is None or trajectory.stop_reason in _UNJUDGED:
        return _outcome(trajectory, reduce_reward(trajectory, config), config)
    try:
        with boundary(OrlError, "the reward function"):
            given = reward(trajectory)
            if not math.isfinite(given):
                raise ValueError(f"it returned {given!r}, not a finite number")
            return _outcome(trajectory, clamp(float(given), config), config)
    except OrlError as fault:
        failed = structs.replace(trajectory, stop_reason=StopReason.ERROR, error=str(fault))
        return _outcome(failed, 0.0, config)


def cleared(outcome: Outcome, scrubber: Scrubber) -> Outcome:
    """Return `outcome`; one whose text echoes a secret scrubbed, without ids and data, so that nobody can pass it on.

    The job is the caller's own and stays as it is.
    """
    trajectory = scrubber.cleared(outcome.trajectory)
    if trajectory is outcome.trajectory:
        return outcome
    return structs.replace(outcome, trajectory=structs.replace(trajectory, job=outcome.trajectory.job), datums=())


def _outcome(trajectory: Trajectory, reward: float, config: EnvironmentConfig) -> Outcome:
    failed = trajectory.stop_reason is StopReason.ERROR
    reward = 0.0 if failed else reward
    success = not failed and reward >= config.success_reward
    data = () if trajectory.contains_secret else to_data(trajectory, reward=reward)
    return Outcome(trajectory=trajectory, reward=reward, success=success, datums=data)
