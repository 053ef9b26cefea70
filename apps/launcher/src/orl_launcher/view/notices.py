"""Remarks on a run, the same in the terminal, on a page and in JSON: its error, what could not train."""

from __future__ import annotations

from collections.abc import Iterator

from orl_rollout.episodes.journal import read_journal
from orl_rollout.run_folder.metrics_log import Kind
from orl_rollout.run_folder.record import Record


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
    if silent := record.no_signal:
        yield silent.text


def unjudged(record: Record) -> str:
    """Return how many rollouts of each kind were judged; "" if all were."""
    kinds: tuple[Kind, ...] = ("eval", "train")
    return "; ".join(f"{label_of(record, kind)} {tally}" for kind in kinds if str(tally := record.tally(kind)))


def label_of(record: Record, kind: Kind) -> str:
    """Return which tasks the points of one kind were measured on: training, held-out, or played by `orl rollout`."""
    if kind == "train":
        return "training"
    return "held-out" if record.steps or not record.finished else "played"


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
    if _unplayed(record):
        yield (
            "No rollout had a turn, so nothing was trained: the first prompts fill the context. Raise "
            "rollout.context_tokens (--max-context-len)"
        )
    elif silent := record.no_signal:
        yield silent.text


def _unplayed(record: Record) -> bool:
    """Return True if no judged rollout of training had a turn."""
    turns = [row.overall("turns") for row in record.of_kind("train")]
    return bool(turns) and all(number == 0.0 for number in turns)
