"""Several runs side by side: one chart for each metric with a line for each run, and the settings that differ."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct
from orl_rollout.run_folder.metrics_log import Kind
from orl_rollout.run_folder.record import Record, running_mean

from orl_launcher.view.curves import CHARTS, EXACT
from orl_launcher.view.html import flat
from orl_launcher.view.notices import unjudged
from orl_launcher.view.svg import Drawing, Line, Stroke

MOST = 8  # runs; each has a colour in the style sheet


class Comparison(Struct, frozen=True, kw_only=True):
    """Charts of several runs, and rows of settings: a name, and the value in each run.

    `notes` say of each run how many rollouts were judged, if some were not.
    """

    held_out: tuple[Drawing, ...]
    training: tuple[Drawing, ...]
    settings: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...]


def compare(records: Sequence[Record]) -> Comparison:
    """Compare runs, in the order of their colours."""
    return Comparison(
        held_out=_drawings(records, "eval"),
        training=_drawings(records, "train"),
        settings=_differences(records),
        notes=tuple(map(unjudged, records)),
    )


def _drawings(records: Sequence[Record], kind: Kind) -> tuple[Drawing, ...]:
    made: list[Drawing] = []
    for name, title, share in CHARTS:
        strokes = tuple(
            Stroke(line=line, style=f"run-{index}", dots=kind == "eval")
            for index, record in enumerate(records)
            if (line := _line(record, name, kind)).steps
        )
        if any(len(stroke.line.steps) > 1 for stroke in strokes):
            made.append(Drawing(title=title, strokes=strokes, share=share))
    return tuple(made)


def _line(record: Record, name: str, kind: Kind) -> Line:
    steps, values = record.curve(name, kind)
    return Line(steps, values if kind == "eval" or name in EXACT else running_mean(values))


def _differences(records: Sequence[Record]) -> tuple[tuple[str, ...], ...]:
    settings = [dict(flat(record.config)) for record in records]
    names = dict.fromkeys(name for one in settings for name in one)
    rows = ((name, *(one.get(name, "-") for one in settings)) for name in names)
    return tuple(row for row in rows if len(set(row[1:])) > 1)
