"""Results of a run by environment and split, as plain rows for the terminal and for a page."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct
from orl_rollout.run_folder.metrics_log import MetricsRow, names_in, tally_in
from orl_rollout.run_folder.record import Record

from orl_launcher.view.notices import label_of
from orl_launcher.view.wording import number, rate, success_rate


class ResultRows(Struct, frozen=True, kw_only=True):
    """A table: one row for each environment, its name first. `kind` says what it was measured on."""

    kind: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def results_of(record: Record) -> ResultRows | None:
    """Return the results of the first and the last evaluation, else of the first and the last training batch.

    Each rate has its 95 % interval and the number of rollouts that were judged, that of pass@k the number of tasks.
    """
    points = record.of_kind("eval") or record.of_kind("train")
    if not points:
        return None
    ends = (*points[:1], *points[1:][-1:])
    last = ends[-1].metrics
    rungs = rungs_of(last)
    columns = [f"{figure}, step {point.step}" for point in ends for figure in ("success", "reward")]
    rows = [
        (name, *(cell for point in ends for cell in _cells(point, name)), *(pass_at(last, name, k) for k in rungs))
        for name in names_in(last)
    ]
    return ResultRows(
        kind=f"{label_of(record, ends[-1].kind)} tasks",
        columns=("environment", *columns, *(f"pass@{k}" for k in rungs)),
        rows=tuple(rows),
    )


def rungs_of(metrics: Mapping[str, float]) -> list[int]:
    """Return each k of pass@k in `metrics`, none where tasks were played once: pass@1 is the success then."""
    named = {name.rpartition("/pass@")[2] for name in metrics if "/pass@" in name}
    rungs = sorted(int(k) for k in named if k.isdecimal())
    return [] if rungs == [1] else rungs


def _cells(point: MetricsRow, name: str) -> tuple[str, str]:
    metrics = point.metrics
    success, reward = metrics.get(f"{name}/success"), metrics.get(f"{name}/reward")
    return (success_rate(success, tally_in(metrics, name)), "-" if reward is None else number(reward))


def pass_at(metrics: Mapping[str, float], name: str, k: int) -> str:
    """Write pass@k of an environment with its interval over tasks; "-" if it is not known."""
    share, n = metrics.get(f"{name}/pass@{k}"), metrics.get(f"{name}/tasks")
    return "-" if share is None or n is None else rate(share, n)
