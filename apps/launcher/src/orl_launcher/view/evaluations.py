"""Remarks on a run, and its results by environment and split: the same in the terminal, on a page and in JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from msgspec import Struct
from orl_rollout.episodes.journal import read_journal
from orl_rollout.run_folder.metrics_log import Kind, MetricsRow, names_in, tally_in
from orl_rollout.run_folder.record import Record

from orl_launcher.view.wording import MAIN_METRICS, rate, success_rate

TASKS = "rollout_tasks.jsonl"  # in the folder of a run of `orl rollout` alone


def notices_of(record: Record) -> Iterator[str]:
    """Yield the sentences that a reader must know before the figures."""
    if record.error:
        yield f"The run failed: {record.error}"
    if record.overlap:
        yield f"Of the held-out tasks, {record.overlap} are also trained on (`eval.allow_overlap`)."
    if left_out := unjudged(record):
        yield f"Rollouts: {left_out}. Success, reward and turns are those of the judged ones."
    if unmet := [point for point in record.points if point.overall("agent/forced_calls_unmet")]:
        yield f"In {len(unmet)} of {len(record.points)} measurements, calls that agents demanded were not made."
    yield from silence(record)


def unjudged(record: Record) -> str:
    """Return how many rollouts of each kind were judged; "" if all were."""
    kinds: tuple[Kind, ...] = ("eval", "train")
    return "; ".join(f"{label_of(record, kind)} {tally}" for kind in kinds if str(tally := record.tally(kind)))


def label_of(record: Record, kind: Kind) -> str:
    """Return which tasks the points of one kind were measured on: training, held-out, or played by `orl rollout`."""
    if kind == "train":
        return "training"
    return "played" if (record.folder / TASKS).is_file() else "held-out"


def trained_nothing(record: Record) -> bool:
    """Return True if no rollout of training could train, or no step had a signal before its tasks were solved."""
    tally = record.tally("train")
    return tally.judged == 0 < tally.rollouts or _unplayed(record) or record.learned_nothing


def untrained(record: Record) -> Iterator[str]:
    """Yield a line on rollouts in ERROR or ABORTED, with the latest error, and one if no turn or no signal came."""
    tally = record.tally("train")
    errors, rollouts = tally.rollouts - tally.judged, tally.rollouts
    if errors:
        latest = ""
        for entry in read_journal(record.journal):
            latest = entry.trajectory.error or latest
        because = f" The latest error: {' '.join(latest.split())}" if latest else ""
        yield f"{errors} of {rollouts} rollouts of training ended in ERROR or ABORTED and trained nothing.{because}"
    yield from silence(record)


def silence(record: Record) -> Iterator[str]:
    """Yield a line if no turn or no signal came."""
    if _unplayed(record):
        yield "No rollout had a turn: first prompts fill the context. Raise rollout.context_tokens (--max-context-len)"
    elif silent := record.no_signal:
        yield silent.text


def _unplayed(record: Record) -> bool:
    """Return True if no judged rollout had a turn."""
    turns = [row.overall("turns") for row in record.of_kind("train") or record.points]
    return bool(turns) and all(number == 0.0 for number in turns)


class ResultRows(Struct, frozen=True, kw_only=True):
    """A table: one row for each environment, its name first. `kind` says what it was measured on."""

    kind: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def results_of(record: Record) -> ResultRows | None:
    """Return the results of the first and the last evaluation, else of the first and the last training batch.

    If there is only one, its turns and valid calls are shown, too.

    Each rate has its 95 % interval and the number of rollouts that were judged, that of pass@k the number of tasks.
    """
    points = record.of_kind("eval") or record.of_kind("train")
    if not points:
        return None
    ends = (*points[:1], *points[1:][-1:])
    last = ends[-1].metrics
    rungs = rungs_of(last)
    figures = ("success", "reward") if len(points) > 1 else ("success", "reward", "turns", "valid_calls")
    shown = [(point, figure) for point in ends for figure in figures]
    columns = [f"{figure.replace('_', ' ')}, step {point.step}" for point, figure in shown]
    rows = [
        (name, *(_cell(*one, name) for one in shown), *(pass_at(last, name, k) for k in rungs))
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


def _cell(point: MetricsRow, figure: str, name: str) -> str:
    value = point.metrics.get(f"{name}/{figure}")
    if figure == "success":
        return success_rate(value, tally_in(point.metrics, name))
    return "-" if value is None else dict(MAIN_METRICS)[figure](value)


def pass_at(metrics: Mapping[str, float], name: str, k: int) -> str:
    """Write pass@k of an environment with its interval over tasks; "-" if it is not known."""
    share, n = metrics.get(f"{name}/pass@{k}"), metrics.get(f"{name}/tasks")
    return "-" if share is None or n is None else rate(share, n)
