"""Numbers of a batch of rollouts, for metrics.jsonl of the run and for the trainer's own tracking.

`generate` leaves a Measure in every sample's metadata; here they become metrics per environment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from orl_core.errors import OrlError, RunAborted, boundary
from orl_rollout.logs import logger_of
from orl_rollout.results.metrics import Measure, metrics_of
from orl_rollout.run_folder import metrics_log

from orl_cluster.hooks.group_scores import flat, rollout_of
from orl_cluster.hooks.samples import MEASURE
from orl_cluster.hooks.worker import run_of

logger = logger_of("orl")

# Arguments, rollout_id, the kind (`rollout` or `eval`), and metrics whose names begin with it.
Send = Callable[[Any, int, str, Mapping[str, float]], None]


def log_rollout(args: Any, rollout_id: int, samples: Sequence[Any], seconds: float, send: Send) -> None:
    """Log one training batch, step `rollout_id + 1` of the run.

    Raises:
        RunAborted: `generate` ended the run, and the trainer went on without its exception.
    """
    _refuse_ended(args)
    run_of(args).batches = rollout_id + 1
    metrics = metrics_of(measures_of(samples))
    _log(args, rollout_id, "rollout", metrics, send)
    _append(args, "train", rollout_id + 1, metrics, seconds=seconds)


def log_eval(args: Any, rollout_id: int, data: Mapping[str, Any], send: Send) -> None:
    """Log one evaluation of the held-out tasks: a mapping of datasets, each with its `samples`.

    Raises:
        RunAborted: as `log_rollout`.
    """
    _refuse_ended(args)
    measures = [measure for one in data.values() for measure in measures_of(one.get("samples") or ())]
    metrics = metrics_of(measures)
    _log(args, rollout_id, "eval", metrics, send)
    # Evaluated rollouts run side by side: they take as long as the longest of them.
    seconds = max((measure.generation_seconds + measure.environment_seconds for measure in measures), default=0.0)
    _append(args, "eval", _steps_made(args, rollout_id), metrics, seconds=seconds)


def measures_of(samples: Iterable[Any]) -> list[Measure]:
    """Return the measures of the rollouts of `samples`. Several samples of one rollout count once."""
    found = {
        rollout_of(sample): sample.metadata[MEASURE] for sample in reversed(flat(samples)) if MEASURE in sample.metadata
    }
    return [msgspec.convert(found[rollout], Measure) for rollout in reversed(found)]


def _log(args: Any, rollout_id: int, kind: str, metrics: Mapping[str, float], send: Send) -> None:
    named = {f"{kind}/{name}": value for name, value in metrics.items()}
    logger.info("orl %s %d: %s", kind, rollout_id, named)
    if named:
        with boundary(OrlError, "the trainer's tracking"):
            send(args, rollout_id, kind, named)


def _refuse_ended(args: Any) -> None:
    if ended := run_of(args).ended:
        raise RunAborted(ended)


def _steps_made(args: Any, rollout_id: int) -> int:
    """Return the steps before the evaluation `rollout_id`, as metrics.jsonl has them.

    Trainers give the evaluation before all training the number of the first step. The file may be a step ahead, where
    the next batch is played meanwhile.
    """
    path = _metrics_file(args)
    rows = metrics_log.read(path) if path else []
    logged = max((row["step"] for row in rows if row["kind"] == "train"), default=rollout_id)
    return min(logged, rollout_id + 1)


def _append(args: Any, kind: metrics_log.Kind, step: int, metrics: Mapping[str, float], *, seconds: float) -> None:
    path = _metrics_file(args)
    if path and metrics:
        metrics_log.append(path, kind, step, metrics, seconds=seconds)


def _metrics_file(args: Any) -> Path | None:
    folder = getattr(args, "orl_folder", None)
    return Path(folder) / "metrics.jsonl" if folder else None
