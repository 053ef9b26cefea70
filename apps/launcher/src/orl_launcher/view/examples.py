"""Choose the episodes of a journal that show the effect of training: one task, played before and after.

Pure. It reads the entries once, in any order, and keeps those of the first and the last step only.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct
from orl_rollout.episodes.journal import Entry


class Examples(Struct, frozen=True):
    """An episode from the beginning and one from the end; `choice` says how they were chosen."""

    before: Entry
    after: Entry
    choice: str


def examples_of(entries: Iterable[Entry]) -> Examples | None:
    """Return examples from evaluation if it was journalled, else from training; None if there is only one step."""
    ends: dict[tuple[bool, int], dict[str, Entry]] = {(held, way): {} for held in (True, False) for way in (-1, 1)}
    steps: dict[tuple[bool, int], int] = {}
    for entry in entries:
        if entry.trajectory.error or not entry.trajectory.turns:
            continue
        step = entry.step or 0
        for way in (-1, 1):
            end = (entry.trajectory.job.evaluation, way)
            ahead = way * (step - steps.setdefault(end, step))
            if ahead > 0:
                steps[end] = step
                ends[end].clear()
            if ahead >= 0:
                ends[end].setdefault(entry.trajectory.job.task.key, entry)
    for held in (True, False):
        if steps.get((held, -1)) != steps.get((held, 1)):
            return _choose(ends[held, -1], ends[held, 1], "held-out" if held else "training")
    return None


def _choose(first: dict[str, Entry], last: dict[str, Entry], kind: str) -> Examples:
    pairs = [(entry, last[key]) for key, entry in first.items() if key in last]
    improved = [pair for pair in pairs if pair[1].success and not pair[0].success]
    if improved:
        return Examples(*improved[0], f"The first {kind} task that was lost before training and won after it.")
    if pairs:
        return Examples(*pairs[0], f"The first {kind} task, played before and after training.")
    before = next((entry for entry in first.values() if not entry.success), next(iter(first.values())))
    after = next((entry for entry in last.values() if entry.success), next(iter(last.values())))
    return Examples(
        before, after, f"Two {kind} tasks: the first one lost before training, and the first one won after it."
    )
