"""The curves of a run: charts as inline SVG for a page, two of them as a PNG.

matplotlib draws the PNG, on white and without a window system.
"""

# matplotlib's signatures leave their keyword arguments untyped.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from orl_core.text import visible
from orl_rollout.results.interval import wilson
from orl_rollout.run_folder.metrics_log import tally_of
from orl_rollout.run_folder.record import RECENT, Record, running_mean

from orl_launcher.view.notices import unjudged
from orl_launcher.view.svg import Drawing, Line, Stroke, draw
from orl_launcher.view.wording import JUDGED, RANDOM

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = {  # no two are the same
    "ink": "#1f2328",
    "muted": "#6a7079",
    "grid": "#e3e5e8",
    "train": "#8a94a6",
    "eval": "#0b7a75",
    "baseline": "#b4541a",
}
CHARTS = (
    ("success", "Success rate", True),
    ("reward", "Reward", False),
    ("valid_calls", "Valid tool calls", True),
    ("turns", "Turns per episode", False),
    ("loss", "Loss", False),
    ("kl", "KL from the reference model", False),
    ("policy_kl", "KL of the update", False),
    ("entropy", "Entropy, nats per token", False),
    ("grad_norm", "Gradient norm", False),
    ("learning_rate", "Learning rate", False),
    ("clip_fraction", "Share of tokens clipped", False),
    ("logprob_difference", "Logprobs, training against sampling", False),
    ("response_tokens", "Tokens of a response", False),
    ("staleness", "Staleness, batches", False),
    ("rollout_seconds", "Seconds of rollouts", False),
    ("train_seconds", "Seconds of training", False),
    ("weight_sync_seconds", "Seconds of copying weights", False),
    ("step_seconds", "Seconds of a step", False),
    ("train_memory_gib", "GPU memory of training, GiB", False),
    ("gpu_utilization", "GPU utilization of this machine", True),
    ("gpu_memory_gib", "GPU memory in use, GiB", False),
    ("generation_seconds", "Engine seconds, all rollouts", False),
    ("environment_seconds", "Environment seconds, all rollouts", False),
)
TITLE = 100  # characters
SMOOTHED_FROM = 10  # steps of training from which a running mean is drawn over the raw values

EXACT = frozenset({"learning_rate"})  # chosen and not measured: a mean over steps would be wrong


class Chart(Struct, frozen=True, kw_only=True):
    """One chart: a line of training batches, a line of held-out evaluations, a level to compare with.

    `interval` holds the lower and the upper line of the 95 % interval around the held-out line. `sets` are the held-out
    lines of each environment, and of each split where an environment has several, with their names. `note` says how
    many rollouts were judged if the metric leaves some out.
    """

    name: str
    title: str
    share: bool
    train: Line
    held_out: Line
    interval: tuple[Line, Line] | None = None
    sets: tuple[tuple[str, Line], ...] = ()
    baseline: float | None = None
    note: str = ""


def charts_of(record: Record) -> tuple[Chart, ...]:
    """Return the charts for which the run has at least two points of one kind."""
    charts: list[Chart] = []
    for name, title, share in CHARTS:
        train, held_out = (Line(*record.curve(name, kind)) for kind in ("train", "eval"))
        if max(len(train.steps), len(held_out.steps)) >= 2:
            chart = Chart(
                name=name,
                title=title,
                share=share,
                train=train,
                held_out=held_out,
                interval=_interval(record) if name == "success" else None,
                sets=tuple((of, Line(*record.curve(name, "eval", of))) for of in record.evaluated),
                baseline=record.baseline if name == "success" else None,
                note=unjudged(record) if name in JUDGED else "",
            )
            charts.append(chart)
    return tuple(charts)


def _interval(record: Record) -> tuple[Line, Line] | None:
    """Return the bounds of the held-out success rate; None without evaluations."""
    found = [
        (point.step, wilson(success, tally_of([point]).judged))
        for point in record.of_kind("eval")
        if (success := point.overall("success")) is not None
    ]
    if not found:
        return None
    steps = tuple(step for step, _ in found)
    low, high = (Line(steps=steps, values=tuple(bounds[end] for _, bounds in found)) for end in (0, 1))
    return low, high


def svg_of(chart: Chart) -> str:
    """Draw a chart as an `<svg>` element that takes its colours from the page around it."""
    strokes: list[Stroke] = []
    smooth = len(chart.train.steps) >= SMOOTHED_FROM and chart.name not in EXACT
    if chart.train.steps:
        strokes.append(Stroke(line=chart.train, style="raw" if smooth else "train"))
    if smooth:
        means = Line(chart.train.steps, running_mean(chart.train.values))
        strokes.append(Stroke(line=means, style="train"))
    names = [(name.partition("/")[2], line) for name, line in chart.sets]
    strokes += [Stroke(line=line, style="set", label=_short(name, 40)) for name, line in names]
    if chart.held_out.steps:
        strokes.append(Stroke(line=chart.held_out, style="eval", dots=True))
    return draw(
        Drawing(title=chart.title, strokes=tuple(strokes), share=chart.share, band=chart.interval, level=chart.baseline)
    )


def write_png(charts: tuple[Chart, ...], path: Path, title: str) -> None:
    """Draw the first two charts side by side into `path`."""
    from matplotlib.figure import Figure

    shown = charts[:2]
    with _style():
        figure = Figure(figsize=(5.4 * len(shown), 3.4), layout="constrained", dpi=160, facecolor="white")
        shape: dict[str, Any] = {"x": 0.03, "ha": "left", "fontsize": 12, "fontweight": "bold"}
        # Names are no formulas: a `$` is a dollar.
        figure.suptitle(_short(title), color=COLOURS["ink"], parse_math=False, **shape)
        figure.set_layout_engine("constrained", w_pad=0.14, h_pad=0.1)
        for index, chart in enumerate(shown, start=1):
            axes = figure.add_subplot(1, len(shown), index)
            _draw(axes, chart)
            title = f"{chart.title}\n{chart.note}" if chart.note else chart.title
            axes.set_title(title, loc="left", fontsize=10.5, color=COLOURS["ink"])
            axes.legend(frameon=False, fontsize=8.5, labelcolor=COLOURS["muted"], loc="lower right")
        figure.savefig(path, format="png")


def _short(title: str, most: int = TITLE) -> str:
    """Return a title of one line that fits into a figure."""
    line = visible(" ".join(title.split()))
    return line if len(line) <= most else f"{line[: most - 1]}…"


def _style() -> AbstractContextManager[None]:
    from matplotlib import rc_context  # pyright: ignore[reportUnknownVariableType]

    fonts: dict[Any, Any] = {"font.size": 10, "font.family": "DejaVu Sans", "text.usetex": False}
    return rc_context(fonts)


def _draw_sets(axes: Axes, chart: Chart) -> None:
    """Draw what lies behind the held-out line: its interval, and the line of each environment with its name."""
    if chart.interval is not None:
        low, high = chart.interval
        axes.fill_between(low.steps, low.values, high.values, color=COLOURS["eval"], alpha=0.12, linewidth=0)
    for index, (name, line) in enumerate(chart.sets):
        if line.steps:
            dashes: dict[str, Any] = {"linestyle": (0, (1 + 2 * (index % 3), 2)), "linewidth": 1.2, "alpha": 0.8}
            axes.plot(line.steps, line.values, color=COLOURS["eval"], label="_set", **dashes)
            label: dict[str, Any] = {"fontsize": 7.5, "ha": "right", "va": "bottom", "parse_math": False}
            axes.text(
                line.steps[-1], line.values[-1], _short(name.partition("/")[2], 40), color=COLOURS["eval"], **label
            )


def _draw(axes: Axes, chart: Chart) -> None:
    from matplotlib.ticker import MaxNLocator

    if chart.train.steps:
        smooth = len(chart.train.steps) >= SMOOTHED_FROM
        raw: dict[str, Any] = {"linewidth": 1.0, "alpha": 0.45} if smooth else {"linewidth": 1.8}
        label = "_raw" if smooth else "training batch"
        axes.plot(chart.train.steps, chart.train.values, color=COLOURS["train"], label=label, **raw)
        if smooth:
            means = running_mean(chart.train.values)
            label = f"training, mean of {RECENT} steps"
            axes.plot(chart.train.steps, means, color=COLOURS["train"], linewidth=2.2, label=label)
    _draw_sets(axes, chart)
    if chart.held_out.steps:
        style: dict[str, Any] = {"linewidth": 2.2, "marker": "o", "markersize": 5.5}
        axes.plot(chart.held_out.steps, chart.held_out.values, color=COLOURS["eval"], label="held-out tasks", **style)
    if chart.baseline is not None:
        dashes: dict[str, Any] = {"linestyle": (0, (5, 3)), "linewidth": 1.6}
        axes.axhline(chart.baseline, color=COLOURS["baseline"], label=RANDOM, **dashes)
    if chart.share:
        axes.set_ylim(0, 1.03)
        axes.set_yticks([0, 0.25, 0.5, 0.75, 1], ["0", "25 %", "50 %", "75 %", "100 %"])
    axes.margins(x=0.02)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("step", color=COLOURS["muted"], fontsize=9)
    axes.grid(axis="y", color=COLOURS["grid"], linewidth=0.8)
    axes.tick_params(colors=COLOURS["muted"], labelsize=9, length=0)
    axes.set_axisbelow(True)
    for side, spine in axes.spines.items():
        spine.set_visible(side == "bottom")
        spine.set_color(COLOURS["grid"])
