"""TRL's own numbers, and the packages that a result depends on. Pure; knows TRL's log only as a mapping."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from orl_rollout.run_folder.metrics_log import mean
from orl_rollout.run_folder.training_metrics import with_common_names

PACKAGES = ("torch", "transformers", "trl", "peft", "openreward", "orl-core", "orl-rollout", "orl-trl")
_NOT_OURS = frozenset(
    {"epoch", "reward", "reward_std"}
)  # of TRL's log: the first says nothing, ours are by environment
NAMES = {  # TRL's other numbers have our names already: loss, kl, entropy, grad_norm, learning_rate
    "clip_ratio/region_mean": "clip_fraction",
    "sampling/sampling_logp_difference/mean": "logprob_difference",
    "completions/mean_length": "response_tokens",
}


def trl_metrics(logs: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the means of TRL's own numbers over the logs of one step, those that every trainer logs by our names."""
    names = dict.fromkeys(name for log in logs for name in log if name not in _NOT_OURS)
    means = {name: mean(log.get(name) for log in logs) for name in names if not name.startswith("rewards/")}
    return with_common_names({name: value for name, value in means.items() if value is not None}, NAMES)
