"""Success on held-out tasks of several runs in one picture, for the pages of evidence.

uv run --extra local python -m benchmarks.seeds PICTURE.png TITLE "seed 0=runs/a" "seed 1=runs/b" [--level "LABEL=0.41"]
"""

# matplotlib's signatures leave their keyword arguments untyped.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from orl_rollout.run_folder.record import read_record

COLOURS = ("#1d4ed8", "#0f766e", "#b45309", "#7c3aed", "#be123c", "#4b5563")


def draw(runs: Mapping[str, Path], levels: Mapping[str, float], title: str, picture: Path) -> None:
    """Draw a line for each run, and a dashed one for each level."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.2, 3.6), layout="constrained", dpi=120, facecolor="white")
    axes: Any = figure.subplots()
    for colour, (label, folder) in zip(COLOURS, runs.items(), strict=False):
        steps, values = read_record(folder).curve("success", "eval")
        axes.plot(steps, values, color=colour, label=label, marker="o", linewidth=2)
    for label, level in levels.items():
        axes.axhline(level, color="#6b7280", linestyle="--", linewidth=1.5, label=label)
    axes.set_ylim(0, 1)
    axes.set_yticks([0, 0.25, 0.5, 0.75, 1], ["0", "25 %", "50 %", "75 %", "100 %"])
    axes.set_xlabel("step")
    axes.set_title(title, loc="left", fontsize=11)
    axes.grid(axis="y", color="#e5e7eb")
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)
    axes.legend(frameon=False, loc="lower right", fontsize=9)
    figure.savefig(picture, format="png")


def main() -> None:
    """Read the runs and write the picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("picture", type=Path)
    parser.add_argument("title")
    parser.add_argument("runs", nargs="+", metavar="LABEL=RUN")
    parser.add_argument("--level", action="append", default=[], metavar="LABEL=NUMBER")
    options = parser.parse_args()
    runs = {label: Path(folder) for label, _, folder in (one.partition("=") for one in options.runs)}
    levels = {label: float(number) for label, _, number in (one.partition("=") for one in options.level)}
    draw(runs, levels, options.title, options.picture)


if __name__ == "__main__":
    main()
