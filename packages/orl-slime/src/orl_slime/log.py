"""slime's log hooks: what the rollouts of a batch say in numbers, to slime's own tracking and to the run's history.

Both hooks return False, so that slime logs its own numbers beside ours. slime is the host: it is looked up, never
imported.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from orl_cluster.hooks import log


def log_rollout(
    rollout_id: int, args: Any, samples: Sequence[Any], rollout_extra_metrics: Any, rollout_time: float
) -> bool:
    """slime's `--custom-rollout-log-function-path`: one training batch, step `rollout_id + 1` of the run.

    Raises:
        RunAborted: `generate` ended the run, and slime, fully async, went on without its exception.
    """
    log.log_rollout(args, rollout_id, samples, rollout_time, _sender(args, rollout_id))
    return False


def log_eval(rollout_id: int, args: Any, data: Mapping[str, Any], extra_metrics: Any = None) -> bool:
    """slime's `--custom-eval-rollout-log-function-path`: one evaluation of the held-out tasks."""
    log.log_eval(args, rollout_id, data, _sender(args, rollout_id))
    return False


def _sender(args: Any, rollout_id: int) -> log.Send:
    """To W&B and TensorBoard, by slime's own tracking, on the axis that slime's numbers of this kind have."""

    def send(kind: str, metrics: Mapping[str, float]) -> None:
        tracking = sys.modules.get("slime.observability.logging_utils")
        steps = sys.modules.get("slime.observability.metric_utils")
        if tracking is not None and steps is not None:
            step = steps.compute_rollout_step(args, rollout_id)
            tracking.log(args, {**metrics, f"{kind}/step": step}, step_key=f"{kind}/step")

    return send
