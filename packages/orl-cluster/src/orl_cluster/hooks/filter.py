"""Whether a group teaches something: what a trainer's dynamic filter is asked before it keeps one.

A trainer's own filter may not look into rollouts that were split into several samples, and takes a failure's reward for
one. The filter is asked before groups are compared, so what the environment will compare is not dropped for its reward.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from orl_cluster.hooks.group_scores import OFFERED, flat, rollout_of
from orl_cluster.hooks.reward import reward_of, trains

SMALLEST = 1e-6  # of a difference between rewards that counts as one


def reason_to_drop(args: Any, samples: Sequence[Any]) -> str | None:
    """None where a group has two rollouts that train, and their rewards differ; else what it lacks.

    `samples` is one group: a sample for each rollout, or a list of them. A group of one has no siblings to differ
    from: it is kept where it trains.
    """
    members = flat(samples)
    rewards = {rollout_of(sample): reward_of(args, sample) for sample in members if trains(sample)}
    compared = any(OFFERED in sample.metadata for sample in members)
    if len(rewards) < min(2, len(samples)):
        return "too_few_train"
    if len(samples) > 1 and not compared and max(rewards.values()) - min(rewards.values()) <= SMALLEST:
        return f"equal_rewards_{round(next(iter(rewards.values())), 1)}"
    return None
