"""slime's reward hooks: the reward was computed with the trajectory; here it is returned, and made into advantages.

`--custom-rm-path orl_slime.reward.reward` and `--custom-reward-post-process-path orl_slime.reward.post_process`. The
second exists because slime's own normalisation takes an uneven batch for one group and lets failures into the baseline.
"""

from __future__ import annotations

import copy
import sys
from typing import Any

from orl_cluster.hooks.reward import post_process as cluster_post_process
from orl_cluster.hooks.reward import reward_of

_NORMALISED = frozenset({"grpo", "gspo", "cispo"})


async def reward(args: Any, sample: Any, **_: Any) -> Any:
    """The reward that `generate` set, or for a row that is no task what slime's own reward model says of it.

    For a list of samples, a list of rewards.
    """
    if isinstance(sample, list):
        return [await reward(args, member) for member in sample]
    host = sys.modules.get("slime.rollout.rm_hub")
    if sample.reward is not None or host is None:
        return reward_of(args, sample)
    args, sample = copy.copy(args), copy.copy(sample)
    args.custom_rm_path = sample.custom_rm_path = None  # either may have led here
    return await host.async_rm(args, sample)


def post_process(args: Any, samples: list[Any]) -> tuple[list[float], list[float]]:
    """Raw rewards, and rewards as slime's estimator wants them; see `orl_cluster.hooks.reward.post_process`."""
    return cluster_post_process(args, samples, _NORMALISED)
