"""The rollouts of a run that could not train: they ended in ERROR or ABORTED, or before their first turn."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from orl_rollout.episodes.journal import read_journal
from orl_rollout.run_folder.record import Record, read_record


def trained_nothing(folder: Path) -> bool:
    """Tell whether no rollout of training could train, or no step had a signal before its tasks were solved."""
    record = read_record(folder)
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
    """Tell whether all rollouts of training that were judged had no turn."""
    turns = [row.overall("turns") for row in record.of_kind("train")]
    return bool(turns) and all(number == 0.0 for number in turns)
