"""The list of runs that `orl view` shows: state and curve of each, read again when files change."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Literal

from msgspec import Struct
from orl_core.errors import ConfigError, OrlError, boundary
from orl_rollout.run_folder.metrics_log import tally_of
from orl_rollout.run_folder.record import Record, is_run, read_record

from orl_launcher.view.evaluations import label_of
from orl_launcher.view.svg import Line
from orl_launcher.view.wording import one_line

ALIVE_SECONDS = 300.0  # a run whose files did not change for so long and that has no summary has stopped
PROBLEM = 120  # characters of an error in the list
READ = ("config.json", "metrics.jsonl", "summary.json", "recoveries.jsonl")
State = Literal["running", "finished", "interrupted", "failed", "stopped", "unreadable"]


class RunRow(Struct, frozen=True, kw_only=True):
    """One row of the list of runs. `note` says what success was measured on, and how many rollouts were judged."""

    name: str
    state: State
    record: Record
    note: str = ""
    curve: Line = Line((), ())
    started: float | None = None  # in seconds since the epoch
    changed: float = 0.0
    problem: str = ""


class Catalog:
    """Runs by name: those in the folder `root`, or only `root` if it is a run or a journal's file."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._records: dict[Path, tuple[object, Record]] = {}

    def runs(self) -> dict[str, Path]:
        """Return the folders of the runs, or the journal's file, by their names. Refuse a root that is not there."""
        root = self._root
        if root.is_file() or is_run(root):
            return {root.resolve().name: root}
        if not root.is_dir():
            raise ConfigError(f"{root}: no such folder. Give the folder of your runs, or of one run")
        return {path.name: path for path in sorted(root.iterdir()) if is_run(path)}

    def record(self, path: Path) -> Record:
        """Return the run in the folder `path`, or that of a journal's file."""
        files = (path / name for name in READ)
        stamp = [(file.stat().st_mtime_ns, file.stat().st_size) for file in files if file.is_file()]
        if path not in self._records or self._records[path][0] != stamp:
            self._records[path] = (stamp, record_of(path))
        return self._records[path][1]

    def rows(self) -> list[RunRow]:
        """Return the list of runs, the one that changed last first."""
        rows = [self._row(name, path) for name, path in self.runs().items()]
        return sorted(rows, key=lambda row: row.changed, reverse=True)

    def _row(self, name: str, path: Path) -> RunRow:
        try:
            with boundary(OrlError, f"reading {path}"):  # a file of another program, or of an older version
                return _row_of(name, self.record(path))
        except OrlError as fault:
            return RunRow(name=name, state="unreadable", record=empty(path), problem=str(fault))


def record_of(path: Path) -> Record:
    """Return the run in the folder `path`; a journal's file is a run of nothing else."""
    return read_record(path) if path.is_dir() else empty(path)


def empty(path: Path) -> Record:
    """Return a record of nothing but a place."""
    return Record(folder=path, config={}, summary={}, points=())


def _row_of(name: str, record: Record) -> RunRow:
    changed, began = last_change(record), record.folder / "config.json"
    kind, latest = record.judged_on, record.points[-1:]
    compared = record.change("success") or not latest
    measured, tally = (kind, record.tally(kind)) if compared else (latest[0].kind, tally_of(latest))
    label = label_of(record, measured) if latest else ""
    notes = (label, record.basis("success"), str(tally), "no signal" if record.no_signal else "")
    return RunRow(
        name=name,
        state=state_of(record, changed),
        record=record,
        note=", ".join(filter(None, notes)),
        curve=Line(*record.curve("success", kind)),
        started=began.stat().st_mtime if began.is_file() else None,
        changed=changed,
        problem=one_line(record.error, PROBLEM),
    )


def state_of(record: Record, changed: float) -> State:
    """Return what became of a run."""
    if record.error or (record.summary and record.judged_none and not record.summary.get("interrupted")):
        return "failed"
    if record.summary:
        return "interrupted" if record.summary.get("interrupted") else "finished"
    return "running" if time.time() - changed < ALIVE_SECONDS else "stopped"


def last_change(record: Record) -> float:
    """Return when a file of the run, such as the log of its engine, was written last, in seconds since the epoch."""
    places = {record.folder, record.journal}
    files = (file for place in places for file in (place.iterdir() if place.is_dir() else (place,)))
    return max((file.stat().st_mtime for file in files if file.is_file()), default=0.0)
