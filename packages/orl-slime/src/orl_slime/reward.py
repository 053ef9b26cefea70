"""slime's reward hooks: the reward was computed with the trajectory; here it is returned, and made into advantages.

`--custom-rm-path orl_slime.reward.reward` and `--custom-reward-post-process-path orl_slime.reward.post_process`. The
second exists because slime's own normalisation takes an uneven batch for one group and lets failures into the baseline.
"""

from __future__ import annotations

import copy
import sys
from typing import Any

from orl_core.reward import group_advantages

from orl_slime.compare import compare, rollout_of

_NORMALISED = frozenset({"grpo", "gspo", "cispo"})
_CENTRED = frozenset({"reinforce_plus_plus_baseline"})


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


def reward_of(args: Any, sample: Any) -> float:
    """The one number of a sample's reward, where it may have several (`--reward-key`); 0.0 where it has none."""
    given = sample.reward[args.reward_key] if isinstance(sample.reward, dict) else sample.reward
    return 0.0 if given is None else float(given)


def trains(sample: Any) -> bool:
    """Whether slime will train on `sample`. It takes no mask for one of ones."""
    mask = [1] * sample.response_length if sample.loss_mask is None else sample.loss_mask
    return not sample.remove_sample and any(mask)


def post_process(args: Any, samples: list[Any]) -> tuple[list[float], list[float]]:
    """Raw rewards, and rewards as the estimator wants them, for N samples in slime's order.

    Whole groups are here for the first time, so this is where the environment compares them (`group_reward`).
    Samples that do not train are left out of their group's baseline and get 0. A rollout that was split into several
    samples (equal `rollout_id`) counts once.
    """
    raw = compare(args, samples, [reward_of(args, sample) for sample in samples])
    estimator = args.advantage_estimator if getattr(args, "rewards_normalization", False) else ""
    if estimator not in _NORMALISED | _CENTRED:
        return raw, list(raw)
    advantages = group_advantages(
        raw,
        [sample.group_index for sample in samples],
        [rollout_of(sample) for sample in samples],
        [trains(sample) for sample in samples],
        center=True,
        scale=estimator in _NORMALISED and args.grpo_std_normalization,
    )
    return raw, advantages
