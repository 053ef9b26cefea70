"""metrics.jsonl of a run: one line for a step's training batch, its update or an evaluation.

Whichever trainer trains, it leaves the same lines, so that reports and curves read any run. A trainer on a cluster
reports its updates after their batch: such a line is an "update", and readers find it in the row of the batch. A line
is one append, so that another process may read the file while it grows. An adapter says under which names its trainer
logs the numbers of an update. A number that a trainer does not log is missing. The trainer's own names stay too.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

import msgspec
from msgspec import Struct, field, structs
from orl_core.errors import OrlError, boundary

from orl_rollout.edge.files import read_lines

Kind = Literal["train", "eval", "update"]
# Numbers of an update, by the name that they have with every trainer.
TRAINING_METRICS = {
    "loss": "loss of the update",
    "kl": "KL divergence from the reference model",
    "policy_kl": "KL divergence from the policy before the update",
    "entropy": "entropy of the policy, in nats per token",
    "grad_norm": "norm of the gradient before clipping",
    "learning_rate": "learning rate",
    "clip_fraction": "share of tokens whose ratio was clipped",
    "logprob_difference": "mean absolute difference between logprobs of training and of sampling",
    "response_tokens": "mean tokens of a row after its prompt, tool results included",
    "staleness": "mean updates of the engine's weights between sampling and training",
    "rollout_seconds": "seconds of the rollouts; on a cluster, those in which the trainer waited for them",
    "train_seconds": "seconds of training",
    "weight_sync_seconds": "seconds of copying the weights into the engine",
    "step_seconds": "seconds of the whole step",
    "train_memory_gib": "most memory that tensors of the training process had on the GPU in a step, in GiB",
    "gpu_utilization": "share of the time in which a GPU of this machine was busy, mean of all",
    "gpu_memory_gib": "most memory in use on a GPU of this machine, by all processes, in GiB",
}


class Tally(Struct, frozen=True):
    """Rollouts of one or more rows, how many of them were judged, and how many ended in ERROR.

    `success` is a share of the judged ones. Its text is empty if all were judged.
    """

    rollouts: int = 0
    judged: int = 0
    errors: int = 0

    def __str__(self) -> str:
        if self.judged == self.rollouts:
            return ""
        return f"{self.judged} of {self.rollouts} judged" + (f", {self.errors} in ERROR" if self.errors else "")


class MetricsRow(Struct, frozen=True, kw_only=True):
    """One line. `metrics` are finite numbers by name; `seconds` is the time that the step or the evaluation took."""

    step: int
    kind: Kind
    seconds: float = 0.0
    metrics: dict[str, float] = field(default_factory=dict[str, float])

    def overall(self, name: str) -> float | None:
        """Return a metric over all environments."""
        return overall(self.metrics, name)


def tally_of(rows: Iterable[MetricsRow], of: str = "") -> Tally:
    """Count the rollouts of `rows`: `of` one environment, else of all."""
    tallies = [tally_in(row.metrics, of) for row in rows]
    return Tally(*(sum(counts) for counts in zip(*map(structs.astuple, tallies), strict=True)))


def tally_in(metrics: Mapping[str, float], of: str = "") -> Tally:
    """Count the rollouts of one row's `metrics`, as `tally_of` does."""
    total, judged, errors = (
        metrics.get(f"{of}/{name}") if of else overall(metrics, name) for name in ("rollouts", "judged", "stop/error")
    )
    rollouts = round(total or 0.0)
    sound = rollouts if judged is None else round(judged)
    return Tally(rollouts, sound, rollouts - sound if errors is None else round(rollouts * errors))


def append(path: Path, kind: Kind, step: int, metrics: Mapping[str, float], *, seconds: float) -> None:
    """Add one line to the file at `path`. `seconds` is the time of the step or the evaluation, as far as is known.

    Raises:
        OrlError: it cannot be written (a full disk). What is left of it is a torn line.
    """
    row = {"step": step, "kind": kind, "seconds": round(seconds, 3), **metrics}
    with boundary(OrlError, f"writing {path}"), path.open("a+b") as file:
        torn = file.tell() > 0 and file.seek(-1, os.SEEK_END) >= 0 and file.read(1) != b"\n"
        file.write(b"\n" * torn + msgspec.json.encode(row) + b"\n")


def read(path: Path) -> list[MetricsRow]:
    """Return the lines of the file at `path`; none if there is no file. Torn lines are left out.

    A trainer that continues a checkpoint makes some steps again: then the last line of a step counts. The numbers of an
    update are in the row of its batch.
    """
    rows = [row for row in map(parse_row, read_lines(path)) if row is not None] if path.is_file() else []
    return joined(rows)


def joined(rows: Sequence[MetricsRow]) -> list[MetricsRow]:
    """Return the last row of each step, with the numbers of its update."""
    last = {(row.kind, row.step): row for row in rows}
    kept: list[MetricsRow] = []
    for row in rows:
        if last[row.kind, row.step] is not row:
            continue
        if row.kind == "train" and (update := last.get(("update", row.step))):
            kept.append(structs.replace(row, metrics={**update.metrics, **row.metrics}))
        elif row.kind == "update" and ("train", row.step) not in last:
            kept.append(structs.replace(row, kind="train"))
        elif row.kind != "update":
            kept.append(row)
    return kept


def parse_row(line: bytes) -> MetricsRow | None:
    """Return one line of the file; None if it is torn or foreign."""
    try:
        tree = msgspec.json.decode(line, type=dict[str, Any])
        head = {name: tree.pop(name) for name in ("step", "kind", "seconds") if name in tree}
        metrics = {name: float(value) for name, value in tree.items() if _is_number(value)}
        return msgspec.convert({**head, "metrics": metrics}, MetricsRow)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def overall(metrics: Mapping[str, float], name: str) -> float | None:
    """Return a metric over all environments: `all/<name>`, else that of the only environment, else plain `<name>`."""
    of_environments = (value for key, value in metrics.items() if key.split("/", 2)[2:] == [name])
    value = metrics.get(f"all/{name}")
    return next(of_environments, metrics.get(name)) if value is None else value


def names_in(metrics: Mapping[str, float]) -> tuple[str, ...]:
    """Return the environments, and `Organization/Environment/split` and `all`, that `metrics` has figures of."""
    return tuple(key.removesuffix("/rollouts") for key in metrics if key.endswith("/rollouts"))


def mean(values: Iterable[Any]) -> float | None:
    """Return the mean of the finite numbers among `values`; None if there is none."""
    numbers = [float(value) for value in values if _is_number(value)]
    return fmean(numbers) if numbers else None


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def with_common_names(logged: Mapping[str, float], names: Mapping[str, str]) -> dict[str, float]:
    """Return the finite numbers of `logged`, those in `names` (theirs to ours) also under our name."""
    finite = {name: float(value) for name, value in logged.items() if math.isfinite(value)}
    return {**finite, **{ours: finite[theirs] for theirs, ours in names.items() if theirs in finite}}
