"""Remarks on a run, the same in the terminal, on a page and in JSON: its error, what was not judged, no signal."""

from __future__ import annotations

from collections.abc import Iterator

from orl_rollout.run_folder.metrics_log import Kind
from orl_rollout.run_folder.record import Record


def notices_of(record: Record) -> Iterator[str]:
    """Yield the sentences that a reader must know before the figures."""
    if record.error:
        yield f"The run failed: {record.error}"
    if left_out := unjudged(record):
        yield f"Rollouts: {left_out}. Success, reward and turns are those of the judged ones."
    if unmet := [point for point in record.points if point.overall("agent/forced_calls_unmet")]:
        yield f"In {len(unmet)} of {len(record.points)} measurements, calls that agents demanded were not made."
    if silent := record.no_signal:
        yield silent.text


def unjudged(record: Record) -> str:
    """Return how many rollouts of each kind were judged; "" if all were."""
    kinds: tuple[Kind, ...] = ("eval", "train")
    return "; ".join(f"{label_of(record, kind)} {tally}" for kind in kinds if str(tally := record.tally(kind)))


def label_of(record: Record, kind: Kind) -> str:
    """Return which tasks the points of one kind were measured on: training, held-out, or played by `orl rollout`."""
    if kind == "train":
        return "training"
    return "held-out" if record.steps or not record.finished else "played"
