"""Plots of a comparison as SVG: a thin line for each seed, a thick one for the mean of an arm."""

# matplotlib's signatures leave their keyword arguments untyped.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from statistics import fmean

from msgspec import Struct

COLOURS = ("#b3261e", "#e08a00", "#1a56a0")  # failures first, orl last


class Plot(Struct, frozen=True, kw_only=True):
    """The words of a plot. `every` is steps between values; `marks` are vertical, `levels` horizontal lines.

    `limits` are the ends of the axis of values; without them it ends at the curves.
    """

    title: str
    value: str
    every: int = 1
    start: int = 0
    log: bool = False
    limits: tuple[float, float] | None = None
    marks: Mapping[float, str] = {}
    levels: Mapping[float, str] = {}


def draw(plot: Plot, curves: Mapping[int, Mapping[str, list[float]]], path: Path) -> None:
    """Write the plot to `path`, on white."""
    from matplotlib import rcParams
    from matplotlib.figure import Figure

    rcParams["svg.hashsalt"] = "orl"
    figure = Figure(figsize=(6.4, 3.4), layout="constrained")
    axes = figure.add_subplot()
    arms = list(next(iter(curves.values())))
    colours = dict(zip(arms, (*COLOURS[: len(arms) - 1], COLOURS[-1]), strict=True))
    for arm in arms:
        lines = [by_arm[arm] for by_arm in curves.values()]
        steps = [plot.start + plot.every * index for index in range(len(lines[0]))]
        for line in lines:
            axes.plot(steps, line, color=colours[arm], linewidth=1.0, alpha=0.45)
        axes.plot(
            steps, [fmean(column) for column in zip(*lines, strict=True)], color=colours[arm], linewidth=2.4, label=arm
        )
    for at, words in plot.marks.items():
        axes.axvline(at, color="#666666", linewidth=1, linestyle=(0, (3, 2)))
        axes.text(at, 1.0, f" {words}", transform=axes.get_xaxis_transform(), va="top", fontsize=8, color="#444444")
    for at, words in plot.levels.items():
        axes.axhline(at, color="#666666", linewidth=1, linestyle=(0, (3, 2)))
        axes.text(
            1.0, at, words, transform=axes.get_yaxis_transform(), ha="right", va="bottom", fontsize=8, color="#444444"
        )
    if plot.log:
        axes.set_yscale("log")
    if plot.limits:
        axes.set_ylim(*plot.limits)
    axes.set(title=plot.title, xlabel="step", ylabel=plot.value)
    axes.title.set_fontsize(11)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=9)
    figure.savefig(path, metadata={"Date": None})
