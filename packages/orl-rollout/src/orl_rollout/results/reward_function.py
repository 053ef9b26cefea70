"""The user's own reward function, `reward: module:function`, and how it is combined with the environment's reward.

The module is found as any import is, and then in the working folder. The function is asked by `outcome_of` alone.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from contextlib import suppress
from typing import cast

from msgspec import Struct, structs
from orl_core.config import EnvironmentConfig, RewardMode, RunConfig
from orl_core.reward import reduce_reward, reduce_rewards
from orl_core.trajectory import Trajectory

from orl_rollout.functions import loading

SETTINGS = "environment"  # the parameter that is given the environment's settings, where a function has it


class RewardFunction(Struct, frozen=True, kw_only=True):
    """A function of a trajectory, and how its value is combined with the environment's reward.

    `takes_settings` tells that it has a parameter `environment`, for the EnvironmentConfig without its secrets.
    """

    function: Callable[..., float]
    mode: RewardMode = "replace"
    takes_settings: bool = False

    def reward_of(self, trajectory: Trajectory, config: EnvironmentConfig) -> float:
        """Return the reward of `trajectory`, clamped as `reduce_reward` does.

        Raises:
            ValueError: the function does not return a finite number. All else that it raises goes through.
        """
        settings = {SETTINGS: structs.replace(config, secrets={})} if self.takes_settings else {}
        try:
            value = self.function(trajectory, **settings)
        except SystemExit as exc:  # it would end the event loop, and every other rollout with it
            raise RuntimeError(f"it called sys.exit({exc.code!r}). Raise an exception, or return a reward") from exc
        if not math.isfinite(value):
            raise ValueError(f"it returned {value!r}, not a finite number")
        value = float(value)
        if self.mode == "add":
            value += reduce_reward(trajectory, config)
        elif self.mode == "scale":
            value *= reduce_reward(trajectory, config)
        return reduce_rewards([value], "last", lower=config.min_reward, upper=config.max_reward)


def load_reward(config: RunConfig) -> RewardFunction | None:
    """Load the function that the configuration names; None if it names none.

    Raises:
        ConfigError: the module or the function cannot be loaded, or it does not take a trajectory; names both.
    """
    if config.reward is None:
        return None
    settings = False
    with loading("reward", config.reward) as function:
        if not callable(function) or inspect.iscoroutinefunction(function):
            raise TypeError(f"{type(function).__name__} is no plain function of a trajectory")
        with suppress(ValueError):  # a builtin that does not say what it takes
            signature = inspect.signature(function)
            settings = SETTINGS in signature.parameters
            signature.bind(None, **({SETTINGS: None} if settings else {}))
    return RewardFunction(
        function=cast("Callable[..., float]", function), mode=config.reward_mode, takes_settings=settings
    )
