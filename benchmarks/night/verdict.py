"""Judge a scenario by what is on disk: each planned rollout once, with its reward, or named as lost.

Of several records of a rollout the last one counts. A record that is not counted (ERROR, ABORTED) may precede it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec import Struct
from orl_rollout import Entry, read_journal

from benchmarks.night.driver import Returned, counts
from benchmarks.night.plan import Planned

T = TypeVar("T")

SESSIONS = "sessions-*.jsonl"  # lists of open sessions, next to the journal


class Verdict(Struct, kw_only=True):
    """The row of a scenario. `notes` say what the numbers do not.

    `lost` rollouts were begun and have no record that counts, or had a session at a SIGKILL and are named nowhere.
    `wrong` records count and must not, or have another reward. `unclear` ends lack the one clear line or the error in
    summary.json. `left` sessions are open at the end.
    """

    scenario: str
    planned: int = 0
    lost: int = 0
    wrong: int = 0
    ended: int = 0
    went_on: int = 0
    unclear: int = 0
    left: int = 0
    seconds: float = 0.0
    notes: list[str] = []

    @property
    def faults(self) -> list[str]:
        """Return what must be zero and is not."""
        named = {
            "rollouts lost for good": self.lost,
            "counted wrongly": self.wrong,
            "ended though healthy": self.ended,
            "went on though sick": self.went_on,
            "ended unclearly": self.unclear,
            "sessions left open": self.left,
        }
        return [f"{self.scenario}: {count} {name}" for name, count in named.items() if count]


def entries_of(folder: Path) -> dict[str, list[Entry]]:
    """Return the records of each rollout in the journal of `folder`, in their order."""
    found: dict[str, list[Entry]] = defaultdict(list)
    if folder.is_dir():
        for entry in read_journal(folder):
            found[entry.key].append(entry)
    return found


def judge(verdict: Verdict, folder: Path, plan: Sequence[Planned], begun: Path, returned: Path) -> None:
    """Count what is lost and what is counted wrongly, into `verdict`."""
    entries = entries_of(folder)
    names = {one.name: one for one in plan}
    started = set(_lines(begun, str)) | entries.keys()
    lost = {name for name in started if not (entries.get(name) and counts(entries[name][-1]))}
    told = list(_lines(returned, Returned))
    unkept = {one.name for one in told if one.name not in entries}
    wrong = {name for name, records in entries.items() if not _is_right(names.get(name), records)}
    wrong |= {one.name for one in told if one.stop_reason == "error" and one.reward}
    verdict.lost += len(lost | unkept)
    verdict.wrong += len(wrong)
    if unkept:
        verdict.notes.append(f"{len(unkept)} rollouts returned and are not in the journal")
    if skipped := len(plan) - len(started):
        verdict.notes.append(f"{skipped} never begun")
    if errors := [record for records in entries.values() for record in records if record.trajectory.error]:
        verdict.notes.append(f"{len(errors)} records in ERROR, such as: {errors[0].trajectory.error[:100]}")


def _is_right(one: Planned | None, records: Sequence[Entry]) -> bool:
    """Tell whether at most one record counts, and has the planned reward and turns."""
    counted = [record for record in records if counts(record)]
    if not counted:
        return True
    if one is None or len(counted) > 1 or counted[0] is not records[-1]:
        return False
    return counted[0].reward == one.reward and len(counted[0].trajectory.turns) == one.turns


def named_in(folder: Path) -> set[str]:
    """Return the rollouts and sessions that the journal and the lists of open sessions in `folder` name."""
    named = set(entries_of(folder))
    for path in folder.glob(SESSIONS):
        for line in path.read_bytes().splitlines():
            try:
                row = msgspec.json.decode(line)
            except msgspec.DecodeError:  # a line that the SIGKILL tore
                continue
            named |= {value for value in row.values() if isinstance(value, str)} if isinstance(row, dict) else set()
    return named


def _lines(path: Path, kind: type[T]) -> list[T]:
    return [msgspec.json.decode(line, type=kind) for line in path.read_bytes().splitlines()] if path.is_file() else []
