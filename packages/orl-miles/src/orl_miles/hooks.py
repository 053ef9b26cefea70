"""miles' hooks for rewards, the dynamic filter and logs: `orl_cluster.hooks.trainer_hooks` with miles' modules.

Our reward hooks replace miles' normalisation, which lets failures into the baseline.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from orl_cluster.hooks.trainer_hooks import TrainerHooks

from orl_miles import replay


def _unhook(sample: Any) -> None:
    if sample.reward_spec is not None:
        sample.reward_spec = dataclasses.replace(sample.reward_spec, custom_rm_path=None)


MILES = TrainerHooks(
    package="miles",
    tracking=("utils.tracking_utils.tracking",),
    metric_utils=("utils.metric_utils",),
    unhook=_unhook,
)
reward, has_signal = MILES.reward, MILES.has_signal
log_rollout, log_eval = MILES.log_rollout, MILES.log_eval


def post_process(args: Any, samples: list[Any]) -> tuple[list[float], list[float]]:
    """Return raw rewards and advantages.

    miles calls it before it makes one tensor of the replayed rows, so their padding is fitted here.
    """
    replay.pad(args, samples)
    return MILES.post_process(args, samples)
