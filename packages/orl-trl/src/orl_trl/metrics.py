"""What a run leaves in metrics.jsonl and summary.json. Pure but for the file; knows TRL's log only as a mapping."""

from __future__ import annotations

import math
import platform
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

import msgspec
from orl_rollout.metrics import measure, metrics_of
from orl_rollout.outcome import Outcome

PACKAGES = ("torch", "transformers", "trl", "openreward", "orl-core", "orl-rollout", "orl-trl")
_NOT_OURS = frozenset(
    {"epoch", "reward", "reward_std"}
)  # of TRL's log: the first says nothing, ours are by environment


class MetricsLog:
    """Appends rows to `path` and keeps what the summary asks for."""

    def __init__(self, path: Path) -> None:
        self.train: list[dict[str, float]] = []
        self.evals: list[dict[str, float]] = []
        self.rollouts = 0
        self._path = path

    def add(
        self,
        kind: Literal["train", "eval"],
        step: int,
        outcomes: Sequence[Outcome],
        *,
        seconds: float,
        more: Mapping[str, float] | None = None,
    ) -> dict[str, float]:
        """Write one row; its metrics. `seconds` is what the step, or the evaluation, took."""
        metrics = {**(more or {}), **metrics_of(map(measure, outcomes))}
        (self.train if kind == "train" else self.evals).append({**metrics, "seconds": seconds})
        self.rollouts += len(outcomes)
        row = {"step": step, "kind": kind, "seconds": round(seconds, 3), **metrics}
        with self._path.open("ab") as file:
            file.write(msgspec.json.encode(row) + b"\n")
        return metrics

    def figures(self) -> dict[str, Any]:
        """The summary's figures: of held-out tasks before and after training, of training itself; None if unknown."""
        first = self.evals[0] if self.evals else {}
        last = self.evals[-1] if len(self.evals) > 1 else {}
        return {
            "success_before": overall(first, "success"),
            "success_after": overall(last, "success"),
            "episodes_before": overall(first, "rollouts"),
            "episodes_after": overall(last, "rollouts"),
            "valid_call_rate": _mean(overall(row, "valid_calls") for row in self.train),
            "seconds_per_step": _mean(row["seconds"] for row in self.train),
            "rollouts": self.rollouts,
        }


def overall(metrics: Mapping[str, float], name: str) -> float | None:
    """A metric over all environments: `all/name` where there are several, else that of the only one."""
    of_environments = [value for key, value in metrics.items() if key.split("/", 2)[2:] == [name]]
    return metrics.get(f"all/{name}", of_environments[0] if of_environments else None)


def trl_metrics(logs: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """The means of TRL's own numbers over the logs of one step: loss, grad_norm, entropy, clip ratios and so on."""
    names = dict.fromkeys(name for log in logs for name in log if name not in _NOT_OURS)
    means = {name: _mean(log.get(name) for log in logs) for name in names if not name.startswith("rewards/")}
    return {name: mean for name, mean in means.items() if mean is not None}


def _mean(values: Any) -> float | None:
    numbers = [float(value) for value in values if isinstance(value, int | float) and math.isfinite(value)]
    return fmean(numbers) if numbers else None


def versions() -> dict[str, str]:
    """Python, and the packages that a result depends on."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
