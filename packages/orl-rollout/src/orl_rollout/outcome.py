"""An outcome: a trajectory with its reward and its data, and what a batch of them says in numbers.

Every trainer and command reports the same metrics, so that a run reads alike everywhere. It knows no trainer, and has
no effects but those of the user's own reward function, which is called here and nowhere else.
"""

from __future__ import annotations

import importlib
import inspect
import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import reduce
from statistics import fmean
from typing import Any, cast

from msgspec import Struct, structs
from orl_core.config import EnvironmentConfig
from orl_core.datum import Datum, to_data
from orl_core.errors import ConfigError, OrlError, boundary
from orl_core.reward import clamp, reduce_reward
from orl_core.trajectory import StopReason, Trajectory

Reward = Callable[[Trajectory], float]
_UNJUDGED = frozenset({StopReason.ERROR, StopReason.ABORTED})  # what a reward function is not asked about


class Outcome(Struct, frozen=True, kw_only=True):
    """What came of one rollout. `success` says whether the reward reached the environment's `success_reward`.

    `data` is empty where the engine never returned an id.
    """

    trajectory: Trajectory
    reward: float
    success: bool
    data: tuple[Datum, ...]


def load_reward(name: str) -> Reward:
    """The user's reward function `module:function`, as the configuration names it.

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


def _outcome(trajectory: Trajectory, reward: float, config: EnvironmentConfig) -> Outcome:
    failed = trajectory.stop_reason is StopReason.ERROR
    reward = 0.0 if failed else reward
    success = not failed and reward >= config.success_reward
    return Outcome(trajectory=trajectory, reward=reward, success=success, data=to_data(trajectory, reward=reward))


def metrics_of(outcomes: Sequence[Outcome]) -> dict[str, float]:
    """Metrics of a batch, per environment (`GeneralReasoning/WhoDunIt/reward`) and, of several, together (`all/...`).

    Rates are shares of rollouts or calls in [0, 1]; `reward`, `success` and `turns` leave out rollouts in ERROR.
    """
    names = sorted({outcome.trajectory.job.task.env_name for outcome in outcomes})
    metrics: dict[str, float] = {}
    for name in names:
        members = [outcome for outcome in outcomes if outcome.trajectory.job.task.env_name == name]
        metrics.update({f"{name}/{key}": value for key, value in _metrics(members).items()})
    if len(names) > 1:
        metrics.update({f"all/{key}": value for key, value in _metrics(outcomes).items()})
    return metrics


def _metrics(outcomes: Sequence[Outcome]) -> dict[str, float]:
    trajectories = [outcome.trajectory for outcome in outcomes]
    sound = [outcome for outcome in outcomes if outcome.trajectory.stop_reason is not StopReason.ERROR]
    turns = [turn for trajectory in trajectories for turn in trajectory.turns]
    results = [result for turn in turns for result in turn.results]
    generations = [generation for turn in turns for generation in turn.generations]
    shown = sum(len(turn.observation) for turn in turns)
    metrics = {
        "rollouts": float(len(outcomes)),
        "reward": _mean(outcome.reward for outcome in sound),
        "success": _mean(float(outcome.success) for outcome in sound),
        "turns": _mean(float(len(outcome.trajectory.turns)) for outcome in sound),
        "action_tokens": _mean(float(sum(len(turn.action_ids) for turn in t.turns)) for t in trajectories),
        "valid_calls": _mean(float(bool(turn.results) and not any(r.failure for r in turn.results)) for turn in turns),
        "calls": float(len(results)),
        "observed_tokens": float(shown),
        "cached_tokens": float(sum(generation.cached_tokens for generation in generations)),
        "aborted_tokens": float(
            sum(len(turn.action_ids) for t in trajectories if t.stop_reason is StopReason.ABORTED for turn in t.turns)
        ),
        "generation_seconds": sum(generation.seconds for generation in generations),
        "environment_seconds": sum(result.seconds for result in results),
    }
    for reason in StopReason:
        metrics[f"stop/{reason.value}"] = _mean(float(t.stop_reason is reason) for t in trajectories)
    return metrics


def _mean(values: Iterable[float]) -> float:
    members = list(values)
    return fmean(members) if members else 0.0
