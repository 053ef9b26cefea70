"""slime's hooks for rewards, the dynamic filter and logs: `orl_cluster.hooks.trainer_hooks` with slime's modules.

Our reward hooks replace slime's normalisation, which takes an uneven batch for one group and lets failures into the
baseline.
"""

from __future__ import annotations

from typing import Any

from orl_cluster.hooks.trainer_hooks import TrainerHooks


def _unhook(sample: Any) -> None:
    sample.custom_rm_path = None


SLIME = TrainerHooks(
    package="slime",
    tracking="observability.logging_utils",
    metric_utils="observability.metric_utils",
    normalised=frozenset({"grpo", "gspo", "cispo"}),
    unhook=_unhook,
)
reward, post_process, has_signal = SLIME.reward, SLIME.post_process, SLIME.has_signal
log_rollout, log_eval = SLIME.log_rollout, SLIME.log_eval
