"""slime's `--dynamic-sampling-filter-path orl_slime.filter.has_signal`: only groups that teach something are kept.

A dead environment cannot make it sample without end: that is the breaker's, which `generate` asks.
"""

from __future__ import annotations

import sys
from typing import Any

from orl_cluster.hooks.filter import reason_to_drop


def has_signal(args: Any, samples: list[Any], **_: Any) -> Any:
    """Whether a group has two rollouts that train, and their rewards differ; slime's own answer, with the reason.

    Where slime is not the host, the answer is a bool.
    """
    reason = reason_to_drop(args, samples)
    host = sys.modules.get("slime.rollout.filter_hub.base_types")
    return host.DynamicFilterOutput(keep=reason is None, reason=reason) if host else reason is None
