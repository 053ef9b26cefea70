"""TRL's own numbers, and the versions that a result depends on. Pure; knows TRL's log only as a mapping."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from orl_rollout.run_folder.metrics_log import mean

PACKAGES = ("torch", "transformers", "trl", "peft", "openreward", "orl-core", "orl-rollout", "orl-trl")
_NOT_OURS = frozenset(
    {"epoch", "reward", "reward_std"}
)  # of TRL's log: the first says nothing, ours are by environment


def trl_metrics(logs: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the means of TRL's own numbers over the logs of one step: loss, grad_norm, entropy and so on."""
    names = dict.fromkeys(name for log in logs for name in log if name not in _NOT_OURS)
    means = {name: mean(log.get(name) for log in logs) for name in names if not name.startswith("rewards/")}
    return {name: value for name, value in means.items() if value is not None}


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that a result depends on."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
