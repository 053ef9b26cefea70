"""From the rewards of an environment to one number for each rollout, and to advantages within a group.

All are pure and total: any floats come in, finite and bounded floats come out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING

from orl_core.errors import expect
from orl_core.trajectory import StopReason, Trajectory

if TYPE_CHECKING:
    from orl_core.config import EnvironmentConfig, GroupRewardConfig

_BOUND = 1e18  # of a reward's magnitude where the configuration sets none: its square is finite in float32


_SCALE = 2.0**64  # an exact factor, with which no sum overflows: fsum raises if one does
_TOLERANCE = 1e-9  # for numbers that a reward function added up: 0.7 + 0.2 + 0.1 is 0.9999999999999999


def _sum(values: Iterable[float]) -> float:
    return _SCALE * math.fsum(value / _SCALE for value in values)


def _mean(values: Sequence[float]) -> float:
    return _sum(value / len(values) for value in values)


_REDUCTIONS: dict[str, Callable[[Sequence[float]], float]] = {
    "sum": _sum,
    "mean": _mean,
    "max": max,
    "min": min,
    "last": itemgetter(-1),
}


def reduce_rewards(
    rewards: Sequence[float | None],
    how: str = "sum",
    *,
    terminal: bool = True,
    nonterminal: float | None = None,
    lower: float | None = None,
    upper: float | None = None,
) -> float:
    """Return one number for the rewards of an episode, clamped to `lower` and `upper`.

    `how` is `sum`, the default of a configuration too, `mean`, `max`, `min` or `last`. A reward of None is left out: it
    is not 0. `nonterminal` is appended if the environment did not end the episode (`terminal=False`). No rewards at all
    give 0.0 before the clamp.

        reduce_rewards([0.5, 1.0])                                       # 1.5
        reduce_rewards([0.5, 1.0], "mean")                               # 0.75
        reduce_rewards([0.5, None], terminal=False, nonterminal=-0.25)   # 0.25

    Raises:
        ValueError: `how` is unknown, a number is NaN or infinite, or `lower` is above `upper`.
    """
    if how not in _REDUCTIONS:
        raise ValueError(f"unknown reduction {how!r}. Use one of: {', '.join(_REDUCTIONS)}")
    named = {"nonterminal": nonterminal, "lower": lower, "upper": upper}
    named |= {f"rewards[{place}]": reward for place, reward in enumerate(rewards)}
    for name, value in named.items():
        if value is not None and not math.isfinite(value):
            raise ValueError(f"{name} is {value}. Give a finite number, or None if there is no value")
    if lower is not None and upper is not None and lower > upper:
        raise ValueError(f"lower ({lower}) is above upper ({upper}). Swap them")
    numbers = [reward for reward in rewards if reward is not None]
    if not terminal and nonterminal is not None:
        numbers.append(nonterminal)
    reward = float(_REDUCTIONS[how](numbers)) if numbers else 0.0
    return min(max(reward, -_BOUND if lower is None else lower), _BOUND if upper is None else upper)


def reduce_reward(trajectory: Trajectory, config: EnvironmentConfig) -> float:
    """Return the reward of a trajectory: `reduce_rewards` with the settings of its environment.

    The environment's rewards that are not finite are left out. The nonterminal reward counts if the environment did not
    end the episode. A trajectory that ends in ERROR has no reward worth the name; its datum does not train.

    Source: the fields `reward_reduction`, `nonterminal_reward`, `min_reward`, `max_reward` of the configuration.
    """
    from orl_core.config import EnvironmentConfig  # who has a trajectory alone need not load it

    expect(Trajectory, "trajectory", trajectory)
    expect(EnvironmentConfig, "config", config)
    return reduce_rewards(
        [reward for reward in trajectory.rewards if math.isfinite(reward)],
        config.reward_reduction,
        terminal=trajectory.stop_reason is StopReason.FINISHED,
        nonterminal=config.nonterminal_reward,
        lower=config.min_reward,
        upper=config.max_reward,
    )


def reaches(reward: float, least: float) -> bool:
    """Return whether `reward` is at least `least`, to within 1e-9 of it."""
    return reward >= least - _TOLERANCE * abs(least)


def group_rewards(rewards: Sequence[float], scores: Sequence[float | None], config: GroupRewardConfig) -> list[float]:
    """Return the rewards of N rollouts with the environment's comparative scores: alone, or added with the weight.

    A score of None, or one that is not finite, leaves the rollout's own reward. Finite and bounded, as the rewards are.

    Raises:
        ValueError: the columns differ in length.
    """
    from orl_core.config import GroupRewardConfig

    expect(GroupRewardConfig, "config", config)
    blended: list[float] = []
    for reward, score in zip(rewards, scores, strict=True):
        if config.mode == "off" or score is None or not math.isfinite(score):
            blended.append(reward)
            continue
        value = score if config.mode == "only" else reward + config.weight * score
        blended.append(min(max(value, -_BOUND), _BOUND))
    return blended


def group_advantages(
    rewards: Sequence[float],
    groups: Sequence[Hashable],
    rollout_ids: Sequence[Hashable],
    trains: Sequence[bool],
    *,
    center: bool,
    scale: bool,
) -> list[float]:
    """Return advantages of N rows in their groups: `reward - mean` if `center`, over `std + 1e-6` if `scale`.

    A rollout that was split into several rows (equal `rollout_ids`) counts once, and its rows get the same value. Rows
    that do not train are left out of mean and deviation and get 0. The deviation is the unbiased one (N - 1); a group
    with one trainable member has deviation 0, so centring gives it 0. Rewards are as `reduce_reward` makes them.

    Raises:
        ValueError: the columns differ in length.
    """
    members: dict[Hashable, dict[Hashable, float]] = {}
    for reward, group, rollout_id, trainable in zip(rewards, groups, rollout_ids, trains, strict=True):
        if trainable:
            members.setdefault(group, {})[rollout_id] = reward
    advantages: list[float] = []
    statistics = {group: _statistics(list(values.values())) for group, values in members.items()}
    for reward, group, trainable in zip(rewards, groups, trains, strict=True):
        if not trainable:
            advantages.append(0.0)
            continue
        first, mean, deviation = statistics[group]
        value = (reward - first) - mean if center else reward
        advantages.append(value / (deviation + 1e-6) if scale else value)
    return advantages


def turn_advantages(
    returns: Sequence[Sequence[float]],
    groups: Sequence[Hashable],
    trains: Sequence[bool],
    *,
    center: bool,
    scale: bool,
) -> list[list[float]]:
    """Return advantages of the turns of N rollouts; `returns[n][t]` is the return-to-go of rollout n from turn t on.

    If `center`, the mean return-to-go of the other trainable rollouts of the group that reached turn t is subtracted;
    nothing if there are none. A rollout has no part in its own baseline, so that the policy gradient has no bias.
    `scale` divides the advantages of a group by their root mean square + 1e-6. The deviation of whole rewards would not
    do: it is 0 if all sums are equal, however they were paid. Rollouts that do not train get 0.

    Raises:
        ValueError: the columns differ in length.
    """
    members: dict[Hashable, list[int]] = {}
    for number, (group, trainable) in enumerate(zip(groups, trains, strict=True)):
        if trainable and returns[number]:
            members.setdefault(group, []).append(number)
    advantages = [[0.0] * len(own) for own in returns]
    for numbers in members.values():
        for number in numbers:
            for turn, value in enumerate(returns[number]):
                others = [returns[other][turn] for other in numbers if other != number and turn < len(returns[other])]
                advantages[number][turn] = value - (_mean(others) if center and others else 0.0)
        if scale:
            own = [advantage for number in numbers for advantage in advantages[number]]
            size = math.hypot(*own) / math.sqrt(len(own)) + 1e-6
            for number in numbers:
                advantages[number] = [advantage / size for advantage in advantages[number]]
    return advantages


def _statistics(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the first value, and mean and deviation of the distances from it: exactly 0 where all values are equal."""
    distances = [value - values[0] for value in values]
    mean = math.fsum(distances) / len(distances)
    deviation = math.hypot(*(distance - mean for distance in distances)) / math.sqrt(max(1, len(values) - 1))
    return values[0], mean, deviation
