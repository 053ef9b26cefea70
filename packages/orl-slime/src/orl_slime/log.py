"""slime's log hooks: what the rollouts of a batch say in numbers, to slime's own tracking and to the run's history.

`generate` leaves a Measure in every sample's metadata; here they become metrics per environment. Both hooks return
False, so that slime logs its own numbers beside ours. slime is the host: it is looked up, never imported.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from orl_core.errors import OrlError, RunAborted, boundary
from orl_rollout import history
from orl_rollout.metrics import Measure, metrics_of

from orl_slime.compare import rollout_of
from orl_slime.process import ENDED

logger = logging.getLogger("orl")

MEASURE = "orl_measure"  # in a sample's metadata


def log_rollout(
    rollout_id: int, args: Any, samples: Sequence[Any], rollout_extra_metrics: Any, rollout_time: float
) -> bool:
    """slime's `--custom-rollout-log-function-path`: one training batch, step `rollout_id + 1` of the run.

    Raises:
        RunAborted: `generate` ended the run, and slime, fully async, went on without its exception.
    """
    if ended := getattr(args, ENDED, ""):
        raise RunAborted(ended)
    metrics = metrics_of(measures_of(samples))
    _log(args, rollout_id, "rollout", metrics)
    _remember(args, "train", rollout_id + 1, metrics, seconds=rollout_time)
    return False


def log_eval(rollout_id: int, args: Any, data: Mapping[str, Any], extra_metrics: Any = None) -> bool:
    """slime's `--custom-eval-rollout-log-function-path`: one evaluation of the held-out tasks."""
    measures = [measure for one in data.values() for measure in measures_of(one.get("samples") or ())]
    metrics = metrics_of(measures)
    _log(args, rollout_id, "eval", metrics)
    # Evaluated rollouts run side by side: they take as long as the longest of them.
    seconds = max((measure.generation_seconds + measure.environment_seconds for measure in measures), default=0.0)
    _remember(args, "eval", _steps_made(args), metrics, seconds=seconds)
    return False


def measures_of(samples: Iterable[Any]) -> list[Measure]:
    """The measures of the rollouts that `samples` came from; several samples of one rollout count once."""
    flat = [member for sample in samples for member in (sample if isinstance(sample, list) else [sample])]
    found = {rollout_of(sample): sample.metadata[MEASURE] for sample in reversed(flat) if MEASURE in sample.metadata}
    return [msgspec.convert(found[rollout], Measure) for rollout in reversed(found)]


def _log(args: Any, rollout_id: int, kind: str, metrics: Mapping[str, float]) -> None:
    """To W&B and TensorBoard, by slime's own tracking, on the axis that slime's numbers of this kind have."""
    named = {f"{kind}/{name}": value for name, value in metrics.items()}
    logger.info("orl %s %d: %s", kind, rollout_id, named)
    tracking = sys.modules.get("slime.observability.logging_utils")
    steps = sys.modules.get("slime.observability.metric_utils")
    if not metrics or tracking is None or steps is None:
        return
    step = steps.compute_rollout_step(args, rollout_id)
    with boundary(OrlError, "slime's tracking"):
        tracking.log(args, {**named, f"{kind}/step": step}, step_key=f"{kind}/step")


def _steps_made(args: Any) -> int:
    """The steps of the run so far, as its history has them: slime counts the first evaluation like the first step."""
    folder = getattr(args, "orl_folder", None)
    rows = history.read(Path(folder) / "metrics.jsonl") if folder else []
    return max((row["step"] for row in rows if row["kind"] == "train"), default=0)


def _remember(args: Any, kind: history.Kind, step: int, metrics: Mapping[str, float], *, seconds: float) -> None:
    folder = getattr(args, "orl_folder", None)
    if folder and metrics:
        history.append(Path(folder) / "metrics.jsonl", kind, step, metrics, seconds=seconds)
