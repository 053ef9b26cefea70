"""Ask OpenReward for the difficulty of tasks: the mean reward of the rollouts that were logged of each.

The statistics are the platform's, whoever serves the environment, so the key goes there (law L6). The module knows
nothing of drawing.
"""

from __future__ import annotations

from urllib.parse import urlencode

from msgspec import Struct
from orl_core.config import DifficultyConfig
from orl_core.errors import ConfigError

from orl_rollout.edge.secrets import api_key
from orl_rollout.openreward.platform import ask_platform

ANSWER_BYTES = 1 << 28  # about a kilobyte a task
ANSWER_SECONDS = 300.0


class _TaskDifficulty(Struct, frozen=True, kw_only=True):
    """One task, in one variant; `task_index` is its position in the split."""

    task_index: int
    avg_reward: float
    num_rollouts: int


async def mean_rewards(name: str, split: str, variant: str | None, wanted: DifficultyConfig) -> dict[int, float]:
    """Return the mean reward of each task of a split that has logged rollouts, by its index.

    Raises:
        ConfigError: the platform's key is missing.
        SessionError: the platform does not answer, or knows no such environment.
    """
    if not api_key():
        raise ConfigError(f"the `difficulty` of {name} comes from OpenReward: set OPENREWARD_API_KEY")
    parameters = {"split": split, "variant": variant, "model_name": wanted.model_name}
    query = urlencode({key: value for key, value in parameters.items() if value is not None})
    path = f"/v1/environments/{name}/task-difficulty?{query}"
    rows = await ask_platform(path, list[_TaskDifficulty], most=ANSWER_BYTES, seconds=ANSWER_SECONDS)
    rewards: dict[int, float] = {}
    counts: dict[int, int] = {}
    for row in rows:  # one for each variant
        rewards[row.task_index] = rewards.get(row.task_index, 0.0) + row.avg_reward * row.num_rollouts
        counts[row.task_index] = counts.get(row.task_index, 0) + row.num_rollouts
    return {index: rewards[index] / count for index, count in counts.items() if count}
