"""Choose which tasks of a listing may be drawn, and in which order. The seed alone decides the order.

Without a difficulty every task may be drawn, and a listing may count more tasks than memory holds.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence

from msgspec import Struct
from orl_core.config import DifficultyConfig, EnvironmentConfig
from orl_core.errors import ConfigError

from orl_rollout.openreward.environment import PAGE, TaskListing
from orl_rollout.openreward.platform import mean_rewards

SPARE = 10  # times the tasks to draw: so many candidates may replace duplicates
EVEN, LEAST = 0.25, 0.01  # the weight of a task that is won half of the time, and the least of any task


class Selection(Struct, frozen=True, kw_only=True):
    """The tasks of a listing that may be drawn: `indices`, or all. `weights` are the chances of each, or equal."""

    listing: TaskListing
    indices: Sequence[int]
    weights: Sequence[float] | None = None

    @property
    def size(self) -> int:
        """Return how many tasks may be drawn."""
        return len(self.indices)

    def order(self, share: int, seed: str) -> Sequence[int]:
        """Return indices to draw `share` tasks from, in the order of drawing; some are spare."""
        if share == self.size:
            return self.indices
        rng = random.Random(seed)  # noqa: S311 - no secret is drawn
        if self.weights is None:
            return rng.sample(self.indices, min(self.size, SPARE * share + PAGE))
        # exponential clocks: the chance to be next is the share of the weight
        clocks = [-math.log(1.0 - rng.random()) / weight for weight in self.weights]
        return [self.indices[n] for n in sorted(range(self.size), key=clocks.__getitem__)]


async def select(listing: TaskListing, environment: EnvironmentConfig, wanted: DifficultyConfig | None) -> Selection:
    """Return the tasks of `listing` whose difficulty is `wanted`; all if nothing is.

    Raises:
        ConfigError: the server does not number its tasks, or no task of it is known.
        SessionError: OpenReward does not say how difficult they are.
    """
    if wanted is None:
        return Selection(listing=listing, indices=range(listing.size))
    where = f"split `{listing.split}` of {listing.env_name}"
    if listing.tasks is not None:
        raise ConfigError(f"{where} does not number its tasks: remove `difficulty`")
    known = await mean_rewards(listing.env_name, listing.split, environment.variant, wanted)
    if not any(0 <= index < listing.size for index in known):
        raise ConfigError(f"OpenReward knows the difficulty of no task in {where}: remove `difficulty`")
    indices = [index for index in range(listing.size) if _fits(known.get(index), wanted)]
    weights = [_weight(index, known, environment.success_reward) for index in indices] if wanted.prefer_even else None
    return Selection(listing=listing, indices=indices, weights=weights)


def _fits(reward: float | None, wanted: DifficultyConfig) -> bool:
    if reward is None:
        return wanted.unknown == "keep"
    low = -math.inf if wanted.min_reward is None else wanted.min_reward
    high = math.inf if wanted.max_reward is None else wanted.max_reward
    return low <= reward <= high


def _weight(index: int, known: Mapping[int, float], success_reward: float) -> float:
    """Return the variance of the task's success, p(1 - p). An unknown task counts as even."""
    if index not in known:
        return EVEN
    share = min(1.0, max(0.0, known[index] / success_reward if success_reward > 0 else known[index]))
    return max(LEAST, share * (1 - share))
