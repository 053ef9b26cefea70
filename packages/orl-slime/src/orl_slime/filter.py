"""slime's `--dynamic-sampling-filter-path orl_slime.filter.has_signal`: only groups that teach something are kept.

slime's own filter does not look into rollouts that were split into several samples, and takes a failure's reward for
one. The filter is asked before groups are compared, so what the environment will compare is not dropped for its reward.
A dead environment cannot make it sample without end: that is the breaker's, which `generate` asks.
"""

from __future__ import annotations

import sys
from typing import Any

from orl_slime.compare import OFFERED, rollout_of
from orl_slime.reward import reward_of, trains

SMALLEST = 1e-6  # of a difference between rewards that counts as one


def has_signal(args: Any, samples: list[Any], **_: Any) -> Any:
    """Whether a group has two rollouts that train, and their rewards differ; slime's own answer, with the reason.

    `samples` is one group: a sample for each rollout, or a list of them. A group of one has no siblings to differ
    from: it is kept where it trains. Where slime is not the host, the answer is a bool.
    """
    flat = [member for sample in samples for member in (sample if isinstance(sample, list) else [sample])]
    rewards = {rollout_of(sample): reward_of(args, sample) for sample in flat if trains(sample)}
    compared = any(OFFERED in sample.metadata for sample in flat)
    reason = None
    if len(rewards) < min(2, len(samples)):
        reason = "too_few_train"
    elif len(samples) > 1 and not compared and max(rewards.values()) - min(rewards.values()) <= SMALLEST:
        reason = f"equal_rewards_{round(next(iter(rewards.values())), 1)}"
    host = sys.modules.get("slime.rollout.filter_hub.base_types")
    return host.DynamicFilterOutput(keep=reason is None, reason=reason) if host else reason is None
