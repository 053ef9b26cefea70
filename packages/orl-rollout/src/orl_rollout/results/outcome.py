"""An outcome: a trajectory with its reward and its data. It knows no trainer.

The user's own reward function, `reward: module:function`, is called here and nowhere else. Its module is found as any
import is, and then in the working folder. The answer of an `async def` is awaited first, by `runtime.judging`. Here an
outcome is cleared of secrets (law L6): what writes, uploads or shows it later need not do so.
"""

from __future__ import annotations

import asyncio
import inspect
import math
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from typing import Any, cast

from msgspec import Struct, structs
from orl_core import Datum, OrlError, StopReason, Trajectory, boundary, to_data
from orl_core.config import EnvironmentConfig, RewardMode, RunConfig
from orl_core.reward import reaches, reduce_reward, reduce_rewards

from orl_rollout.edge.secrets import Scrubber
from orl_rollout.functions import loading

LONGEST_ERROR = 2_000  # characters of a trajectory's error
UNJUDGED = frozenset({StopReason.ERROR, StopReason.ABORTED})  # no reward function is asked, and no metric counts it
SETTINGS = "environment"  # the parameter that is given the environment's settings, where a function has it


class RewardFunction(Struct, frozen=True, kw_only=True):
    """A function of a trajectory, and how its value is combined with the environment's reward.

    `name` is the one in the configuration. `takes_settings` tells that it has a parameter `environment`, for the
    EnvironmentConfig without its secrets. `is_async` tells that a call returns a coroutine.
    """

    name: str
    function: Callable[..., Any]
    mode: RewardMode = "replace"
    takes_settings: bool = False
    is_async: bool = False

    def call(self, trajectory: Trajectory, config: EnvironmentConfig) -> Any:
        """Return what the function returns."""
        settings = {SETTINGS: structs.replace(config, secrets={})} if self.takes_settings else {}
        with _contained(SystemExit, asyncio.CancelledError):
            return self.function(trajectory, **settings)

    def reward_of(self, trajectory: Trajectory, config: EnvironmentConfig) -> float:
        """Return the reward of `trajectory`, clamped as `reduce_reward` does."""
        answer = self.call(trajectory, config)
        if not _is_finite(answer):
            raise ValueError(f"it returned {answer!r}, not a finite number")
        value = float(answer)
        if self.mode == "add":
            value += reduce_reward(trajectory, config)
        elif self.mode == "scale":
            value *= reduce_reward(trajectory, config)
        return reduce_rewards([value], "last", lower=config.min_reward, upper=config.max_reward)

    async def answer(self, trajectory: Trajectory, config: EnvironmentConfig) -> Any:
        """Await what a function that `is_async` returns."""
        with _contained(SystemExit):
            return await self.call(trajectory, config)


@contextmanager
def _contained(*ends: type[BaseException]) -> Generator[None]:
    """Turn what would end the event loop, or the task of a rollout, into an error."""
    try:
        yield
    except ends as exc:
        raise RuntimeError(f"it raised {exc!r}, as sys.exit does. Raise an Exception, or return a reward") from exc


def _is_finite(value: Any) -> bool:
    with suppress(TypeError, OverflowError):
        return math.isfinite(value)
    return False


def load_reward(config: RunConfig) -> RewardFunction | None:
    """Load the function that the configuration names; None if it names none.

    Raises:
        ConfigError: the module or the function cannot be loaded, or it does not take a trajectory; names both.
    """
    if config.reward is None:
        return None
    settings = False
    with loading("reward", config.reward) as function:
        if not callable(function):
            raise TypeError(f"it must be a function that takes one trajectory, not {type(function).__name__}")
        with suppress(ValueError):  # a builtin that does not say what it takes
            signature = inspect.signature(function)
            settings = SETTINGS in signature.parameters
            signature.bind(None, **({SETTINGS: None} if settings else {}))
    return RewardFunction(
        name=config.reward,
        function=cast("Callable[..., Any]", function),
        mode=config.reward_mode,
        takes_settings=settings,
        is_async=inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(function.__call__),
    )


class Outcome(Struct, frozen=True, kw_only=True):
    """The result of one rollout. `success` says whether the reward reached the environment's `success_reward`.

    `datums` is empty if the engine never returned an id, or if the text echoes a secret (see `Scrubber.cleared`).
    `replayed` tells that an attempt before this one was lost with its connection.
    `unrewarded` tells that the environment ended the episode and paid nothing: the reward is the sum of nothing.
    """

    trajectory: Trajectory
    reward: float
    success: bool
    datums: tuple[Datum, ...]
    replayed: bool = False
    unrewarded: bool = False

    @property
    def trains(self) -> bool:
        """Return whether any of its ids trains."""
        return any(datum.trainable and any(datum.loss_mask) for datum in self.datums)


def outcome_of(
    trajectory: Trajectory,
    config: EnvironmentConfig,
    scrubber: Scrubber,
    reward: RewardFunction | None = None,
) -> Outcome:
    """Judge and convert `trajectory`. One that ended in ERROR has reward 0.0 and is never a success.

    `reward` is the user's function; see `RewardFunction`. Total: if it raises, or does not return a finite number, the
    trajectory ends in ERROR and does not train. It is not asked about a trajectory that ended in ERROR or ABORTED.

    A trajectory that echoes a secret of `scrubber` is scrubbed, without ids and data, so that nobody can pass it on.
    """
    if reward is None or trajectory.stop_reason in UNJUDGED:
        outcome = _outcome(trajectory, reduce_reward(trajectory, config), config, scrubber)
        unpaid = trajectory.stop_reason is StopReason.FINISHED and not any(map(math.isfinite, trajectory.rewards))
        return structs.replace(outcome, unrewarded=reward is None and unpaid)
    try:
        with boundary(OrlError, f"the reward function `{reward.name}`"):
            return _outcome(trajectory, reward.reward_of(trajectory, config), config, scrubber)
    except OrlError as fault:
        failed = structs.replace(trajectory, stop_reason=StopReason.ERROR, stop_detail=None, error=str(fault))
        return _outcome(failed, 0.0, config, scrubber)


def _outcome(trajectory: Trajectory, reward: float, config: EnvironmentConfig, scrubber: Scrubber) -> Outcome:
    failed = trajectory.stop_reason is StopReason.ERROR
    reward = 0.0 if failed else reward
    success = not failed and reaches(reward, config.success_reward)
    trajectory = scrubber.cleared(trajectory)
    if failed:  # cut after it was scrubbed: nobody finds a part of a secret
        error = " ".join(trajectory.error[: 2 * LONGEST_ERROR].split())[:LONGEST_ERROR]
        trajectory = structs.replace(trajectory, error=error)
    data = () if trajectory.contains_secret else to_data(trajectory, reward=reward)
    return Outcome(trajectory=trajectory, reward=reward, success=success, datums=data)
