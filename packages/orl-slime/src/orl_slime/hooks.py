"""slime's hooks for rewards, the dynamic filter and logs: `orl_cluster.hooks.trainer_hooks` with slime's modules.

Our reward hooks replace slime's normalisation, which lets failures into the baseline and, until autumn 2026, takes an
uneven batch for one group.
"""

from __future__ import annotations

from typing import Any

from orl_cluster.hooks.trainer_hooks import TrainerHooks

from orl_slime.advantages import TURN_ADVANTAGES


def _unhook(sample: Any) -> None:
    sample.custom_rm_path = None


SLIME = TrainerHooks(
    package="slime",
    tracking=("observability.logging_utils", "utils.logging_utils"),  # the latter until slime 0.3.1
    metric_utils=("observability.metric_utils", "utils.metric_utils"),
    unhook=_unhook,
    takes_turns=lambda args: getattr(args, "custom_advantage_function_path", None) == TURN_ADVANTAGES,
)
reward, post_process, has_signal = SLIME.reward, SLIME.post_process, SLIME.has_signal
log_rollout, log_eval = SLIME.log_rollout, SLIME.log_eval
