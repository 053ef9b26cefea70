"""Numbers of a batch of rollouts, and the run's metrics.jsonl. `generate` leaves a RolloutStats in every sample."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec
from orl_rollout.results.metrics import RolloutStats
from orl_rollout.run_folder import metrics_log

from orl_cluster.hooks.group_scores import flat, rollout_of
from orl_cluster.hooks.samples import STATS


def measures_of(samples: Iterable[Any]) -> list[RolloutStats]:
    """Return the measures of the rollouts of `samples`. Several samples of one rollout count once."""
    found = {
        rollout_of(sample): sample.metadata[STATS] for sample in reversed(flat(samples)) if STATS in sample.metadata
    }
    return [msgspec.convert(found[rollout], RolloutStats) for rollout in reversed(found)]


def steps_made(args: Any, rollout_id: int) -> int:
    """Return the steps before the evaluation `rollout_id`, as metrics.jsonl has them.

    Trainers give the evaluation before all training the number of the first step. The file may be a step ahead, where
    the next batch is played meanwhile.
    """
    path = _metrics_file(args)
    rows = metrics_log.read(path) if path else []
    logged = max((row.step for row in rows if row.kind == "train"), default=rollout_id)
    return min(logged, rollout_id + 1)


def append(args: Any, kind: metrics_log.Kind, step: int, metrics: Mapping[str, float], seconds: float) -> None:
    """Append a row to metrics.jsonl of the run, if it has a folder."""
    if metrics and (path := _metrics_file(args)):
        metrics_log.append(path, kind, step, metrics, seconds=seconds)


def _metrics_file(args: Any) -> Path | None:
    folder = getattr(args, "orl_folder", None)
    return Path(folder) / "metrics.jsonl" if folder else None
