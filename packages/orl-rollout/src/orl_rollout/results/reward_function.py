"""The user's own reward function, `reward: module:function`, and how it is combined with the environment's reward.

The module is found as any import is, and then in the working folder. `outcome_of` asks a plain function; the answer of
an `async def` is awaited first, by `runtime.judging`.
"""

from __future__ import annotations

import asyncio
import inspect
import math
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from typing import Any, cast

from msgspec import Struct, structs
from orl_core.config import EnvironmentConfig, RewardMode, RunConfig
from orl_core.reward import reduce_reward, reduce_rewards
from orl_core.trajectory import Trajectory

from orl_rollout.functions import loading

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
            raise TypeError(f"{type(function).__name__} is no function of a trajectory")
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
