"""A run's folder, read back: configuration, metrics over steps, summary. Whichever trainer wrote it.

It reads leniently, because a run may have been interrupted in the middle of a line, and it draws nothing.
The files are listed in `orl_rollout.run_folder.contract`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, Literal, cast

import msgspec
from msgspec import Struct, field
from orl_core.errors import ConfigError

Kind = Literal["train", "eval"]
FILES = ("config.json", "metrics.jsonl")
RECENT = 5  # steps that a mean over the end (or the beginning) of training takes


class Point(Struct, frozen=True, kw_only=True):
    """One line of metrics.jsonl: the metrics of one step's training batch, or of one evaluation, and what it took."""

    step: int
    kind: Kind
    seconds: float = 0.0
    metrics: dict[str, float] = field(default_factory=dict[str, float])


class Record(Struct, frozen=True, kw_only=True):
    """What a run's folder says. `config` and `summary` are plain JSON, empty where there is none yet."""

    folder: Path
    config: dict[str, Any]
    summary: dict[str, Any]
    points: tuple[Point, ...]

    @property
    def environments(self) -> tuple[str, ...]:
        """The names of the environments that were trained on."""
        return tuple(self.config.get("environments", {}))

    @property
    def journal(self) -> Path:
        """Where the run's journal is: its folder, or what the configuration names."""
        return Path(self.config.get("rollout", {}).get("journal") or self.folder)

    @property
    def finished(self) -> bool:
        """Whether the run came to its end."""
        return bool(self.summary) and not self.summary.keys() & {"interrupted", "error"}

    @property
    def baseline(self) -> float | None:
        """The success rate of a random player that heeds the replies, where somebody worked it out."""
        value = self.summary.get("random_consistent_baseline")
        return float(value) if isinstance(value, int | float) else None

    @property
    def steps(self) -> range:
        """The steps of training that this run made; one that went on from a checkpoint begins above 1."""
        made = [point.step for point in self.points if point.kind == "train"]
        return range(min(made), max(made) + 1) if made else range(1, 1)

    def of_kind(self, kind: Kind) -> tuple[Point, ...]:
        """The points of one kind, in the order of their steps."""
        return tuple(sorted((point for point in self.points if point.kind == kind), key=lambda point: point.step))

    def curve(self, name: str, kind: Kind) -> tuple[tuple[int, ...], tuple[float, ...]]:
        """Steps and values of a metric over all environments together, both of the same length."""
        found = [
            (point.step, value) for point in self.of_kind(kind) if (value := overall(point.metrics, name)) is not None
        ]
        return tuple(step for step, _ in found), tuple(value for _, value in found)

    @property
    def judged_on(self) -> Kind:
        """The kind of points that tells a change: evaluations where there are two of them, else training."""
        return "eval" if len(self.of_kind("eval")) >= 2 else "train"

    def change(self, name: str) -> tuple[float, float] | None:
        """A metric before and after: the first and the last evaluation, else means over the ends of training.

        The ends share no step. None where there are no two values.
        """
        _, values = self.curve(name, self.judged_on)
        width = 1 if self.judged_on == "eval" else min(RECENT, len(values) // 2)
        return (fmean(values[:width]), fmean(values[-width:])) if len(values) >= 2 else None


def overall(metrics: dict[str, float], name: str) -> float | None:
    """A metric of all environments together: `all/<name>`, or that of the only environment; None if unknown."""
    if f"all/{name}" in metrics:
        return metrics[f"all/{name}"]
    of_environments = (value for key, value in metrics.items() if key.split("/", 2)[2:] == [name])
    return next(of_environments, metrics.get(name))


def is_run(path: Path) -> bool:
    """Whether `path` is a run's folder."""
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
        config=_json(folder / "config.json"),
        summary=_json(folder / "summary.json"),
        points=tuple(_points(folder / "metrics.jsonl")),
    )


def has_journal(path: Path) -> bool:
    """Whether there is a journal at `path`: the files of one in a folder, or one of them."""
    from orl_rollout.journal.journal import journal_files

    return any(file.is_file() for file in journal_files(path))


def _json(path: Path) -> dict[str, Any]:
    from orl_rollout.bounded_files import read_whole

    try:
        tree = msgspec.json.decode(read_whole(path))
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}
    return cast("dict[str, Any]", tree) if isinstance(tree, dict) else {}


def _points(path: Path) -> Iterator[Point]:
    from orl_rollout.bounded_files import read_lines

    if not path.is_file():
        return
    for line in read_lines(path):
        point = point_of(line)
        if point is not None:
            yield point


def point_of(line: bytes) -> Point | None:
    """One line of metrics.jsonl; None where it is torn or no point."""
    try:
        tree = msgspec.json.decode(line, type=dict[str, Any])
        head = {name: tree[name] for name in ("step", "kind", "seconds") if name in tree}
        metrics = {name: float(value) for name, value in tree.items() if name not in head and _is_number(value)}
        return msgspec.convert({**head, "metrics": metrics}, Point)
    except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError, RecursionError):
        return None


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def running_mean(values: Sequence[float], width: int = RECENT) -> tuple[float, ...]:
    """The mean of each value and up to `width - 1` before it."""
    return tuple(fmean(values[max(0, end - width) : end]) for end in range(1, len(values) + 1))
