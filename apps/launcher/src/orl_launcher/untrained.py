"""The rollouts of a run that could not train: they ended in ERROR or ABORTED, or before their first turn."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from orl_rollout.journal.journal import read_journal
from orl_rollout.run_folder.record import Record, read_record


def trained_nothing(folder: Path) -> bool:
    """Tell whether every rollout of training ended in ERROR or ABORTED, or before its first turn."""
    record = read_record(folder)
    errors, rollouts = _in_error(record)
    return errors == rollouts > 0 or _unplayed(record)


def untrained(record: Record) -> Iterator[str]:
    """Yield a line on rollouts in ERROR or ABORTED, with the latest error, and one if no rollout had a turn."""
    errors, rollouts = _in_error(record)
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


def _in_error(record: Record) -> tuple[int, int]:
    """Return how many rollouts of training ended in ERROR or ABORTED, and how many there were."""
    steps = record.of_kind("train")
    counts = [(row.overall("rollouts") or 0.0, row.overall("judged")) for row in steps]
    errors = sum(rollouts - judged for rollouts, judged in counts if judged is not None)
    return int(errors), int(sum(rollouts for rollouts, _ in counts))


def _unplayed(record: Record) -> bool:
    """Tell whether all rollouts of training that were judged had no turn."""
    turns = [row.overall("turns") for row in record.of_kind("train")]
    return bool(turns) and all(number == 0.0 for number in turns)
