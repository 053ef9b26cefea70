"""From the rewards of an environment to one number for each rollout, and to advantages within a group.

All are pure and total: any floats come in, finite and bounded floats come out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING

from orl_core.trajectory import StopReason

if TYPE_CHECKING:
    from orl_core.config import EnvironmentConfig, GroupRewardConfig
    from orl_core.trajectory import Trajectory

_BOUND = 1e18  # of a reward's magnitude where the configuration sets none: its square is finite in float32


def _mean(values: Sequence[float]) -> float:
    return 2 * math.fsum(value / (2 * len(values)) for value in values)  # halves: fsum raises where a sum overflows


_REDUCTIONS: dict[str, Callable[[Sequence[float]], float]] = {
    "sum": sum,
    "mean": _mean,
    "max": max,
    "min": min,
    "last": itemgetter(-1),
}


def reduce_reward(trajectory: Trajectory, config: EnvironmentConfig) -> float:
    """Return the reward of a trajectory: its rewards reduced, the nonterminal reward appended, clamped to the bounds.

    The nonterminal reward counts where the environment did not end the episode. No rewards at all give 0.0 before the
    clamp. A trajectory that ends in ERROR has no reward worth the name; its datum does not train.

    Source: the fields `reward_reduction`, `nonterminal_reward`, `min_reward`, `max_reward` of the configuration.
    """
    rewards = [reward for reward in trajectory.rewards if math.isfinite(reward)]
    if trajectory.stop_reason is not StopReason.FINISHED and config.nonterminal_reward is not None:
        rewards.append(config.nonterminal_reward)
    return clamp(_REDUCTIONS[config.reward_reduction](rewards) if rewards else 0.0, config)


def clamp(reward: float, config: EnvironmentConfig) -> float:
    """Return a finite `reward` within `min_reward` and `max_reward`, or small enough to be squared."""
    low = -_BOUND if config.min_reward is None else config.min_reward
    high = _BOUND if config.max_reward is None else config.max_reward
    return min(max(reward, low), high)


def group_rewards(rewards: Sequence[float], scores: Sequence[float | None], config: GroupRewardConfig) -> list[float]:
    """Return the rewards of N rollouts with the environment's comparative scores: alone, or added with the weight.

    A score of None, or one that is not finite, leaves the rollout's own reward. Finite and bounded, as the rewards are.

    Raises:
        ValueError: the columns differ in length.
    """
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
    nothing where there is none. A rollout has no part in its own baseline, so that the policy gradient has no bias.
    `scale` divides by the deviation of the group's rewards, as `group_advantages` does, which adds one. Rollouts that
    do not train get 0.

    Raises:
        ValueError: the columns differ in length.
    """
    members: dict[Hashable, list[int]] = {}
    for number, (group, trainable) in enumerate(zip(groups, trains, strict=True)):
        if trainable and returns[number]:
            members.setdefault(group, []).append(number)
    advantages = [[0.0] * len(own) for own in returns]
    for numbers in members.values():
        deviation = _statistics([returns[number][0] for number in numbers])[2] if scale else 0.0
        for number in numbers:
            for turn, value in enumerate(returns[number]):
                others = [returns[other][turn] for other in numbers if other != number and turn < len(returns[other])]
                advantage = value - (_mean(others) if center and others else 0.0)
                advantages[number][turn] = advantage / (deviation + 1e-6) if scale else advantage
    return advantages


def _statistics(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the first value, and mean and deviation of the distances from it: exactly 0 where all values are equal."""
    distances = [value - values[0] for value in values]
    mean = math.fsum(distances) / len(distances)
    if len(values) < 2:
        return values[0], mean, 0.0
    return values[0], mean, math.hypot(*(distance - mean for distance in distances)) / math.sqrt(len(values) - 1)
