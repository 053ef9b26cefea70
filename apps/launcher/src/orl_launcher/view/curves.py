"""The curves of a run: charts as inline SVG for a page, two of them as a PNG.

matplotlib draws the PNG, on white and without a window system.
"""

# matplotlib's signatures leave their keyword arguments untyped.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orl_core.text import visible
from orl_rollout.results.metrics import wilson
from orl_rollout.run_folder.metrics_log import tally_of
from orl_rollout.run_folder.record import RECENT, Record, running_mean

from orl_launcher.view.notices import unjudged
from orl_launcher.view.svg import NUMBER, SECONDS, SHARE, Drawing, Line, Stroke
from orl_launcher.view.wording import JUDGED, RANDOM

if TYPE_CHECKING:
    from matplotlib.axes import Axes

GROUPS = {  # of charts, by their headings
    "Learning": (
        ("success", "Success rate", SHARE),
        ("reward", "Reward", NUMBER),
        ("valid_calls", "Valid tool calls", SHARE),
        ("turns", "Turns per episode", NUMBER),
        ("tokens_per_turn", "Tokens sampled in a turn", NUMBER),
        ("response_tokens", "Tokens of a response", NUMBER),
    ),
    "Policy": (
        ("loss", "Loss", NUMBER),
        ("kl", "KL from the reference model", NUMBER),
        ("policy_kl", "KL of the update", NUMBER),
        ("entropy", "Entropy, nats per token", NUMBER),
        ("grad_norm", "Gradient norm", NUMBER),
        ("learning_rate", "Learning rate", NUMBER),
        ("clip_fraction", "Share of tokens clipped", NUMBER),
        ("logprob_difference", "Logprobs, training against sampling", NUMBER),
        ("staleness", "Staleness, batches", NUMBER),
    ),
    "Speed": (
        ("step_seconds", "Time of a step", SECONDS),
        ("rollout_seconds", "Time of rollouts", SECONDS),
        ("train_seconds", "Time of training", SECONDS),
        ("weight_sync_seconds", "Time of copying weights", SECONDS),
    ),
    "Machine": (
        ("gpu_utilization", "GPU utilization of this machine", SHARE),
        ("gpu_memory_gib", "GPU memory in use, GiB", NUMBER),
        ("train_memory_gib", "GPU memory of training, GiB", NUMBER),
    ),
}
CHARTS = [(group, name, title, units) for group, charts in GROUPS.items() for name, title, units in charts]
TITLE = 100  # characters
PNG: dict[str, dict[str, Any]] = {  # how matplotlib draws a stroke, by its style
    "raw": {"linewidth": 1.0, "alpha": 0.45},
    "train": {"linewidth": 2.2},
    "set": {"linewidth": 1.2, "alpha": 0.8, "linestyle": (0, (3, 2))},
    "eval": {"linewidth": 2.2, "marker": "o", "markersize": 5.5},
}
SMOOTHED_FROM = 10  # steps of training from which a running mean is drawn over the raw values

EXACT = frozenset({"learning_rate"})  # chosen and not measured: a mean over steps would be wrong


def charts_of(record: Record) -> tuple[Drawing, ...]:
    """Return the charts for which the run has at least two points of one kind.

    A chart has a line of training batches, one of held-out evaluations, and one of each environment that was evaluated.
    """
    charts = (
        Drawing(
            group=group,
            title=title,
            note=unjudged(record) if name in JUDGED else "",
            strokes=tuple(_strokes(record, name)),
            units=units,
            band=_interval(record) if name == "success" else None,
            level=record.baseline if name == "success" else None,
        )
        for group, name, title, units in CHARTS
    )
    return tuple(chart for chart in charts if any(len(stroke.line.steps) > 1 for stroke in chart.strokes))


def _strokes(record: Record, name: str) -> Iterator[Stroke]:
    train, held_out = (Line(*record.curve(name, kind)) for kind in ("train", "eval"))
    smooth = len(train.steps) >= SMOOTHED_FROM and name not in EXACT
    if train.steps:
        yield Stroke(line=train, style="raw" if smooth else "train")
    if smooth:
        yield Stroke(line=Line(train.steps, running_mean(train.values)), style="train")
    for environment in record.evaluated:
        line = Line(*record.curve(name, "eval", environment))
        yield Stroke(line=line, style="set", label=_short(environment.partition("/")[2], 40))
    if held_out.steps:
        yield Stroke(line=held_out, style="eval", dots=True)


def _interval(record: Record) -> tuple[Line, Line] | None:
    """Return the bounds of the held-out success rate, low and high; None without evaluations."""
    points = [point for point in record.of_kind("eval") if point.overall("success") is not None]
    bounds = [wilson(point.overall("success") or 0.0, tally_of([point]).judged) for point in points]
    steps = tuple(point.step for point in points)
    low, high = (Line(steps, tuple(bound[end] for bound in bounds)) for end in (0, 1))
    return (low, high) if points else None


def write_png(charts: tuple[Drawing, ...], path: Path, title: str) -> None:
    """Draw the first two charts side by side into `path`."""
    from matplotlib import rc_context  # pyright: ignore[reportUnknownVariableType]
    from matplotlib.figure import Figure

    shown = charts[:2]
    fonts: dict[Any, Any] = {"font.size": 10, "font.family": "DejaVu Sans", "text.usetex": False}
    with rc_context(fonts):
        figure = Figure(figsize=(5.4 * len(shown), 3.4), layout="constrained", dpi=160, facecolor="white")
        shape: dict[str, Any] = {"x": 0.03, "ha": "left", "fontsize": 12, "fontweight": "bold"}
        figure.suptitle(_short(title), parse_math=False, **shape)  # names are no formulas: a `$` is a dollar
        figure.set_layout_engine("constrained", w_pad=0.14, h_pad=0.1)
        for index, chart in enumerate(shown, start=1):
            _draw(figure.add_subplot(1, len(shown), index), chart)
        figure.savefig(path, format="png")


def _draw(axes: Axes, chart: Drawing) -> None:
    from matplotlib.ticker import MaxNLocator

    style = files("orl_launcher.view").joinpath("style.css").read_text(encoding="utf-8")
    colours = dict(re.findall(r"--([a-z]+): (#[0-9a-f]{6})", style.partition("@media")[0]))
    labels = {"train": "training batch", "eval": "held-out tasks"}
    if any(stroke.style == "raw" for stroke in chart.strokes):
        labels["train"] = f"training, mean of {RECENT} steps"
    if chart.band is not None:
        low, high = chart.band
        axes.fill_between(low.steps, low.values, high.values, color=colours["eval"], alpha=0.12, linewidth=0)
    for stroke in chart.strokes:
        line, colour = stroke.line, colours["train" if stroke.style in ("raw", "train") else "eval"]
        axes.plot(line.steps, line.values, color=colour, label=labels.get(stroke.style, "_"), **PNG[stroke.style])
        if stroke.label and line.steps:
            place: dict[str, Any] = {"fontsize": 7.5, "ha": "right", "va": "bottom", "parse_math": False}
            axes.text(line.steps[-1], line.values[-1], stroke.label, color=colour, **place)
    if chart.level is not None:
        axes.axhline(chart.level, color=colours["baseline"], label=RANDOM, linestyle=(0, (5, 3)), linewidth=1.6)
    if chart.units is SHARE:
        axes.set_ylim(0, 1.03)
        axes.set_yticks([0, 0.25, 0.5, 0.75, 1], ["0", "25 %", "50 %", "75 %", "100 %"])
    axes.set_title("\n".join(filter(None, (chart.title, chart.note))), loc="left", fontsize=10.5)
    axes.legend(frameon=False, fontsize=8.5, labelcolor=colours["muted"], loc="lower right")
    axes.margins(x=0.02)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("step", color=colours["muted"], fontsize=9)
    axes.grid(axis="y", color=colours["grid"], linewidth=0.8)
    axes.tick_params(colors=colours["muted"], labelsize=9, length=0)
    axes.set_axisbelow(True)
    axes.spines[:].set_visible(False)


def _short(title: str, most: int = TITLE) -> str:
    """Return a title of one line that fits into a figure."""
    line = visible(" ".join(title.split()))
    return line if len(line) <= most else f"{line[: most - 1]}…"
