"""The picture of docs/my-run-gets-worse.md: curves of a healthy run next to those of a sick one.

just train-local --name healthy --seed 1
just train-local --name sick --seed 1 --lr 3e-3 --num-rollout 20
uv run --extra local python -m benchmarks.sick_curves runs/healthy runs/sick docs/my-run-gets-worse.png
"""

# matplotlib's signatures leave their keyword arguments untyped.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from orl_rollout.run_folder.metrics_log import Kind
from orl_rollout.run_folder.record import Record, read_record

CURVES: tuple[tuple[str, Kind, str], ...] = (
    ("success", "eval", "Success, held-out"),
    ("valid_calls", "train", "Valid calls"),
    ("turns", "train", "Turns of an episode"),
    ("tokens_per_turn", "train", "Tokens sampled in a turn"),
    ("equal_groups", "train", "Groups of equal rewards"),
    ("entropy", "train", "Entropy, nats per token"),
)
COLUMNS = 3
SHARES = ("success", "valid_calls", "equal_groups")
RUNS = (("healthy", "#1d4ed8", "-"), ("sick", "#b91c1c", "--"))


def draw(runs: tuple[Record, Record], path: Path) -> None:
    """Draw a chart for each of CURVES, with a line for each run."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10.8, 5.6), layout="constrained", dpi=120, facecolor="white")
    axes: Any = figure.subplots(len(CURVES) // COLUMNS, COLUMNS)
    for place, (name, kind, title) in zip(axes.flat, CURVES, strict=True):
        for record, (label, colour, style) in zip(runs, RUNS, strict=True):
            steps, values = record.curve(name, kind)
            marker = "o" if kind == "eval" else ""
            place.plot(steps, values, style, color=colour, label=label, marker=marker, linewidth=2)
        if name in SHARES:
            place.set_ylim(-0.03, 1.03)
            place.set_yticks([0, 0.25, 0.5, 0.75, 1], ["0", "25 %", "50 %", "75 %", "100 %"])
        else:
            place.set_ylim(bottom=0)
        place.set_title(title, loc="left", fontsize=10.5)
        place.grid(axis="y", color="#e5e7eb")
        place.spines[:].set_visible(False)
        place.tick_params(labelsize=9, length=0)
    for place in axes.flat[-COLUMNS:]:
        place.set_xlabel("step", fontsize=9)
    axes.flat[0].legend(frameon=False, fontsize=9)
    figure.savefig(path, format="png")


def main() -> None:
    """Read the two runs and write the picture."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sick_curves")
    parser.add_argument("healthy", type=Path)
    parser.add_argument("sick", type=Path)
    parser.add_argument("output", type=Path)
    options = parser.parse_args()
    draw((read_record(options.healthy), read_record(options.sick)), options.output)


if __name__ == "__main__":
    main()
