"""The reward of a sample as one number, whether it trains, and the advantages of a batch of whole groups.

A trainer's own normalisation may take an uneven batch for one group, or let failures into the baseline; ours does not.
Which of its estimators want what is the adapter's to say.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, cast

from orl_core.reward import group_advantages

from orl_cluster.hooks.group_scores import compare, rollout_of

_CENTRED = frozenset({"reinforce_plus_plus_baseline"})


def reward_of(args: Any, sample: Any) -> float:
    """The one number of a sample's reward, where it may have several (`--reward-key`); 0.0 where it has none."""
    given: Any = sample.reward
    value: Any = cast("dict[str, Any]", given)[args.reward_key] if isinstance(given, dict) else given
    return 0.0 if value is None else float(value)


def trains(sample: Any) -> bool:
    """Whether the trainer will train on `sample`. It takes no mask for one of ones."""
    mask = [1] * sample.response_length if sample.loss_mask is None else sample.loss_mask
    return not sample.remove_sample and any(mask)


def post_process(args: Any, samples: list[Any], normalised: Collection[str]) -> tuple[list[float], list[float]]:
    """Raw rewards, and rewards as the estimator wants them, for N samples in the trainer's order.

    `normalised` are the estimators that take the group's mean and deviation out. Whole groups are here for the first
    time, so this is where the environment compares them (`group_reward`). Samples that do not train are left out of
    their group's baseline and get 0. A rollout that was split into several samples (equal `rollout_id`) counts once.
    """
    raw = compare(args, samples, [reward_of(args, sample) for sample in samples])
    estimator = args.advantage_estimator if getattr(args, "rewards_normalization", False) else ""
    if estimator not in normalised and estimator not in _CENTRED:
        return raw, list(raw)
    advantages = group_advantages(
        raw,
        [sample.group_index for sample in samples],
        [rollout_of(sample) for sample in samples],
        [trains(sample) for sample in samples],
        center=True,
        scale=estimator in normalised and args.grpo_std_normalization,
    )
    return raw, advantages
