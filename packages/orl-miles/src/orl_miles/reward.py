"""miles' reward hooks: the reward was computed with the trajectory; here it is returned, and made into advantages.

`--custom-rm-path orl_miles.reward.reward` and `--custom-reward-post-process-path orl_miles.reward.post_process`. The
second exists because miles' own normalisation lets failures into the baseline.
"""

from __future__ import annotations

import copy
import dataclasses
import sys
from typing import Any

from orl_cluster.hooks.reward import post_process as cluster_post_process
from orl_cluster.hooks.reward import reward_of

from orl_miles import replay

_NORMALISED = frozenset({"grpo", "gspo"})


async def reward(args: Any, sample: Any, **_: Any) -> Any:
    """The reward that `generate` set, or for a row that is no task what miles' own reward model says of it.

    For a list of samples, a list of rewards.
    """
    if isinstance(sample, list):
        return [await reward(args, member) for member in sample]
    host = sys.modules.get("miles.rollout.rm_hub")
    if sample.reward is not None or host is None:
        return reward_of(args, sample)
    args, sample = copy.copy(args), copy.copy(sample)
    args.custom_rm_path = None  # either may have led here
    if sample.reward_spec is not None:
        sample.reward_spec = dataclasses.replace(sample.reward_spec, custom_rm_path=None)
    return await host.async_rm(args, sample)


def post_process(args: Any, samples: list[Any]) -> tuple[list[float], list[float]]:
    """Raw rewards, and rewards as miles' estimator wants them; see `orl_cluster.hooks.reward.post_process`.

    miles asks for them before it makes one tensor of what it replays, so that the padding is fitted here.
    """
    replay.pad(args, samples)
    return cluster_post_process(args, samples, _NORMALISED)
