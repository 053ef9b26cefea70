"""What the rollouts of a batch say in numbers, for the run's history and for the trainer's own tracking.

`generate` leaves a Measure in every sample's metadata; here they become metrics per environment. How they reach the
trainer's tracking is the adapter's to say.
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

Send = Callable[[str, Mapping[str, float]], None]  # the kind, `rollout` or `eval`, and metrics whose names begin so


def log_rollout(args: Any, rollout_id: int, samples: Sequence[Any], seconds: float, send: Send) -> None:
    """One training batch, step `rollout_id + 1` of the run.

    Raises:
        RunAborted: `generate` ended the run, and the trainer went on without its exception.
    """
    _go_on(args)
    run_of(args).batches = rollout_id + 1
    metrics = metrics_of(measures_of(samples))
    _log("rollout", rollout_id, metrics, send)
    _remember(args, "train", rollout_id + 1, metrics, seconds=seconds)


def log_eval(args: Any, rollout_id: int, data: Mapping[str, Any], send: Send) -> None:
    """One evaluation of the held-out tasks: a mapping of datasets, each with its `samples`.

    Raises:
        RunAborted: as `log_rollout`.
    """
    _go_on(args)
    measures = [measure for one in data.values() for measure in measures_of(one.get("samples") or ())]
    metrics = metrics_of(measures)
    _log("eval", rollout_id, metrics, send)
    # Evaluated rollouts run side by side: they take as long as the longest of them.
    seconds = max((measure.generation_seconds + measure.environment_seconds for measure in measures), default=0.0)
    _remember(args, "eval", _steps_made(args, rollout_id), metrics, seconds=seconds)


def measures_of(samples: Iterable[Any]) -> list[Measure]:
    """The measures of the rollouts that `samples` came from; several samples of one rollout count once."""
    found = {
        rollout_of(sample): sample.metadata[MEASURE] for sample in reversed(flat(samples)) if MEASURE in sample.metadata
    }
    return [msgspec.convert(found[rollout], Measure) for rollout in reversed(found)]


def _log(kind: str, rollout_id: int, metrics: Mapping[str, float], send: Send) -> None:
    named = {f"{kind}/{name}": value for name, value in metrics.items()}
    logger.info("orl %s %d: %s", kind, rollout_id, named)
    if named:
        with boundary(OrlError, "the trainer's tracking"):
            send(kind, named)


def _go_on(args: Any) -> None:
    if ended := run_of(args).ended:
        raise RunAborted(ended)


def _steps_made(args: Any, rollout_id: int) -> int:
    """The steps before the evaluation `rollout_id`: trainers count the one before all training like the first step.

    So the history says whether that step was made; it may be a step ahead, where the next batch is played meanwhile.
    """
    folder = getattr(args, "orl_folder", None)
    rows = metrics_log.read(Path(folder) / "metrics.jsonl") if folder else []
    logged = max((row.step for row in rows if row.kind == "train"), default=rollout_id)
    return min(logged, rollout_id + 1)


def _remember(args: Any, kind: metrics_log.Kind, step: int, metrics: Mapping[str, float], *, seconds: float) -> None:
    folder = getattr(args, "orl_folder", None)
    if folder and metrics:
        metrics_log.append(Path(folder) / "metrics.jsonl", kind, step, metrics, seconds=seconds)
