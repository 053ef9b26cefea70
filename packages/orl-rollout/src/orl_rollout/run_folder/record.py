"""A run's folder, read back: configuration, metrics over steps, restarts, summary. Whichever trainer wrote it.

It reads leniently, because a run may have been interrupted in the middle of a line, and it draws nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from statistics import fmean
from typing import Any, cast

import msgspec
from msgspec import Struct
from orl_core.errors import ConfigError

from orl_rollout.edge.files import read_lines
from orl_rollout.run_folder import metrics_log
from orl_rollout.run_folder.config_file import read_object
from orl_rollout.run_folder.judges import NoSignal, no_signal
from orl_rollout.run_folder.metrics_log import Kind, MetricsRow, Tally, names_in, tally_of

FILES = ("config.json", "metrics.jsonl")
RECOVERIES = "recoveries.jsonl"
RECENT = 5  # steps that a mean over the end (or the beginning) of training takes


class Recovery(Struct, frozen=True, kw_only=True):
    """One restart, the `attempt`-th of the run. After a lack of GPU memory, `option` is `after` instead of `before`.

    `checkpoint` is the number of the checkpoint that it continues; None if there is none and it begins again.
    `error` is how the attempt before it ended, `seconds` how long the run had lasted then.
    """

    attempt: int
    option: str = ""
    before: str = ""
    after: str = ""
    checkpoint: int | None = None
    error: str = ""
    seconds: float = 0.0

    @property
    def text(self) -> str:
        """Return the restart in one line."""
        why = "GPU memory ran out" if self.option else "An engine died"
        begins = "from the beginning" if self.checkpoint is None else f"from checkpoint {self.checkpoint}"
        change = f" with {self.option} {self.after} instead of {self.before}" if self.option else ""
        return f"{why}. Restart {self.attempt} {begins}{change}"


class Record(Struct, frozen=True, kw_only=True, dict=True):
    """The contents of a run's folder. `config` and `summary` are plain JSON, empty while there is none."""

    folder: Path
    config: dict[str, Any]
    summary: dict[str, Any]
    points: tuple[MetricsRow, ...]
    recoveries: tuple[Recovery, ...] = ()

    def section(self, name: str) -> dict[str, Any]:
        """Return a section of the configuration; an empty one if it is not an object."""
        section = self.config.get(name)
        return cast("dict[str, Any]", section) if isinstance(section, dict) else {}

    @property
    def environments(self) -> tuple[str, ...]:
        """Return the names of the environments that were trained on."""
        return tuple(self.section("environments"))

    @property
    def journal(self) -> Path:
        """Return the folder of the journal: the run's, or the one that the configuration names."""
        return Path(str(self.section("rollout").get("journal") or self.folder))

    @property
    def finished(self) -> bool:
        """Return whether the run came to its end."""
        return bool(self.summary) and not self.summary.keys() & {"interrupted", "error"}

    @property
    def error(self) -> str:
        """Return the error that ended the run; "" if none did."""
        return str(self.summary.get("error") or "")

    @property
    def overlap(self) -> int | str:
        """Return how many held-out tasks are trained on, too: "some" if a run that allows it has not ended."""
        allowed = self.section("eval").get("allow_overlap")
        return self.summary.get("overlap", "some") if allowed else 0

    @property
    def seconds(self) -> float:
        """Return the time that the run took; while it is not known, that of its steps and evaluations."""
        total = self.summary.get("seconds_total")
        return total if isinstance(total, int | float) else sum(point.seconds for point in self.points)

    @property
    def steps(self) -> range:
        """Return the steps of training that this run made; a run that continues a checkpoint begins above 1."""
        steps = [point.step for point in self.points if point.kind == "train"]
        return range(min(steps), max(steps) + 1) if steps else range(1, 1)

    def of_kind(self, kind: Kind) -> tuple[MetricsRow, ...]:
        """Return the points of one kind, in the order of their steps."""
        return tuple(sorted((point for point in self.points if point.kind == kind), key=lambda point: point.step))

    @property
    def evaluated(self) -> tuple[str, ...]:
        """Return the environments, and the splits of those with several, that were evaluated; () if it is only one."""
        names = tuple(dict.fromkeys(name for point in self.of_kind("eval") for name in names_in(point.metrics)))
        several = tuple(name for name in names if name != "all")
        return several if len(several) > 1 else ()

    def curve(self, name: str, kind: Kind, of: str = "") -> tuple[tuple[int, ...], tuple[float, ...]]:
        """Return steps and values of a metric, both of the same length: `of` one environment, else of all."""
        points = [
            (point.step, point.metrics.get(f"{of}/{name}") if of else point.overall(name))
            for point in self.of_kind(kind)
        ]
        known = [(step, value) for step, value in points if value is not None]
        return tuple(step for step, _ in known), tuple(value for _, value in known)

    @property
    def judged_on(self) -> Kind:
        """Return the kind of points that tells a change: evaluations if there are two of them, else training."""
        return "eval" if len(self.of_kind("eval")) >= 2 else "train"

    def change(self, name: str, kind: Kind | None = None) -> tuple[float, float] | None:
        """Return a metric before and after: first and last evaluation, or means over the ends of training.

        The ends share no step. None if there are no two values. `kind` is that of `judged_on` if it is not given.
        """
        before, after = self._ends(name, kind)
        values = [[point.overall(name) or 0.0 for point in points] for points in (before, after)]
        return (fmean(values[0]), fmean(values[1])) if before else None

    def basis(self, name: str, kind: Kind | None = None) -> str:
        """Return the number of steps that each value of `change` is the mean of, in words; "" if it is one."""
        width = len(self._ends(name, kind)[0])
        return f"mean of {width} steps" if width > 1 else ""

    @property
    def tallies(self) -> tuple[Tally, Tally]:
        """Return the rollouts that the change of success is measured on, before and after."""
        before, after = self._ends("success")
        return tally_of(before), tally_of(after)

    def tally(self, kind: Kind) -> Tally:
        """Return the rollouts of all points of one kind."""
        return tally_of(self.of_kind(kind))

    @property
    def judged_none(self) -> bool:
        """Return whether all rollouts ended in ERROR or ABORTED: those of training, if there were any."""
        tally = self.tally("train" if self.of_kind("train") else "eval")
        return tally.judged == 0 < tally.rollouts

    @property
    def no_signal(self) -> NoSignal | None:
        """Return the latest steps if they had nothing to learn from."""
        return no_signal(self.points)

    @property
    def learned_nothing(self) -> bool:
        """Return whether no step of the run had a signal, and not because all tasks were solved."""
        return self.no_signal is not None and self.no_signal.whole and self.no_signal.cause != "solved"

    def _ends(self, name: str, kind: Kind | None = None) -> tuple[Sequence[MetricsRow], Sequence[MetricsRow]]:
        """Return the first and the last points that have a metric, as `change` takes them; empty if there are none."""
        kind = kind or self.judged_on
        points = [point for point in self.of_kind(kind) if point.overall(name) is not None]
        width = 1 if kind == "eval" else min(RECENT, len(points) // 2)
        return (points[:width], points[-width:]) if len(points) >= 2 else ((), ())


def is_run(path: Path) -> bool:
    """Return whether `path` is a run's folder."""
    return path.is_dir() and (has_journal(path) or any((path / name).exists() for name in FILES))


def read_record(folder: Path) -> Record:
    """Read the folder of a run.

    Raises:
        ConfigError: there is no such folder, or it holds no run.
    """
    if not is_run(folder):
        raise ConfigError(f"{folder}: no run here (no {', '.join(FILES)} or journal)")
    return Record(
        folder=folder,
        config=read_object(folder / "config.json"),
        summary=read_object(folder / "summary.json"),
        points=tuple(metrics_log.read(folder / "metrics.jsonl")),
        recoveries=read_recoveries(folder),
    )


def journal_of(path: Path) -> Path:
    """Return the journal of the run in the folder `path`, or `path` itself if it is a file.

    Raises:
        ConfigError: there is no journal, or not yet.
    """
    record = read_record(path) if path.is_dir() else None
    journal = record.journal if record else path
    if not has_journal(journal):
        if record and "environments" in record.config:
            running = "The model is being made, or the trainer starts" if not record.summary else "The run has ended"
            raise ConfigError(f"{path}: the run has not played yet. {record.error or running}")
        raise ConfigError(f"{journal}: no journal here. Give the folder of a run or a file of its journal")
    return journal


def has_journal(path: Path) -> bool:
    """Return whether there is a journal at `path`, a folder or a file."""
    from orl_rollout.episodes.journal import journal_files

    return any(file.is_file() for file in journal_files(path))


def running_mean(values: Sequence[float]) -> tuple[float, ...]:
    """Return the mean of each value and up to RECENT - 1 before it."""
    return tuple(fmean(values[max(0, end - RECENT) : end]) for end in range(1, len(values) + 1))


def add_recovery(folder: Path, recovery: Recovery) -> None:
    """Add a restart to the record of the run in `folder`."""
    with (folder / RECOVERIES).open("ab") as file:
        file.write(msgspec.json.encode(recovery) + b"\n")


def read_recoveries(folder: Path) -> tuple[Recovery, ...]:
    """Return the restarts of the run in `folder`. Torn lines are left out."""
    recoveries: list[Recovery] = []
    path = folder / RECOVERIES
    for line in read_lines(path) if path.is_file() else ():
        with suppress(msgspec.DecodeError, UnicodeDecodeError):
            recoveries.append(msgspec.json.decode(line, type=Recovery))
    return tuple(recoveries)
