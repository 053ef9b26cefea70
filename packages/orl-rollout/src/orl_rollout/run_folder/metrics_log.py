"""The history of a run: metrics.jsonl, one line for a step's batch or an evaluation, and the figures made of it.

Whichever trainer trains, it leaves the same lines, so that reports and curves read any run. A line is one append, so
that the process that plays may write it while another one reads.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

import msgspec

from orl_rollout.bounded_files import read_lines

Kind = Literal["train", "eval"]


def append(path: Path, kind: Kind, step: int, metrics: Mapping[str, float], *, seconds: float) -> None:
    """Add one line to the file at `path`. `seconds` is what the step or the evaluation took, as far as is known."""
    row = {"step": step, "kind": kind, "seconds": round(seconds, 3), **metrics}
    with path.open("a+b") as file:
        torn = file.tell() > 0 and file.seek(-1, os.SEEK_END) >= 0 and file.read(1) != b"\n"
        file.write(b"\n" * torn + msgspec.json.encode(row) + b"\n")


def read(path: Path) -> list[dict[str, Any]]:
    """The lines of the file at `path`; none where there is no file. What a death tore in the middle is left out."""
    if not path.is_file():
        return []
    rows: list[dict[str, Any]] = []
    for line in read_lines(path):
        with suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            rows.append(msgspec.json.decode(line, type=dict[str, Any]))
    return rows


def figures(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The summary's figures: of held-out tasks before and after training, of training itself; None if unknown."""
    evaluations = [row for row in rows if row["kind"] == "eval"]
    train = [row for row in rows if row["kind"] == "train"]
    nothing: Mapping[str, Any] = {}
    first = evaluations[0] if evaluations else nothing
    last = evaluations[-1] if len(evaluations) > 1 else nothing
    return {
        "success_before": overall(first, "success"),
        "success_after": overall(last, "success"),
        "episodes_before": overall(first, "rollouts"),
        "episodes_after": overall(last, "rollouts"),
        "valid_call_rate": mean(overall(row, "valid_calls") for row in train),
        "seconds_per_step": mean(row["seconds"] for row in train),
        "rollouts": int(sum(overall(row, "rollouts") or 0 for row in rows)),
    }


def overall(metrics: Mapping[str, Any], name: str) -> float | None:
    """A metric over all environments: `all/name` where there are several, else that of the only one."""
    of_environments = [value for key, value in metrics.items() if key.split("/", 2)[2:] == [name]]
    return metrics.get(f"all/{name}", of_environments[0] if of_environments else None)


def mean(values: Iterable[Any]) -> float | None:
    """The mean of the finite numbers among `values`, None where there is none."""
    numbers = [float(value) for value in values if isinstance(value, int | float) and math.isfinite(value)]
    return fmean(numbers) if numbers else None
