"""Judges the difference between logprobs of training and of sampling, step by step.

Fresh rollouts alone have one to judge: the weights that sampled them are those that train, so what is left is rounding.
Engines that never get new weights train on without an error otherwise (verl#7495: for two months). Pure but for one
warning; whoever reads the metrics hands the differences over, and ends the run if there is a `fault`.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from orl_rollout.logs import logger_of

logger = logger_of("orl")

DIFFERENCE = "logprob_difference"  # in metrics.jsonl
WINDOW = 8  # steps, of which the median counts
NOTICEABLE = 0.02  # healthy runs stayed below 0.004: docs/evidence.md
JUMP = 10.0  # times the median of the first steps: a fault above NOTICEABLE
GROWTH = 3.0  # times the first difference: then it grows with the distance from the start


class LogprobDrift:
    """The differences of one run, by step. `most` is the greatest median that is healthy."""

    def __init__(self, most: float) -> None:
        self.fault = ""
        self._most = most
        self._values: list[float] = []

    def add(self, value: float) -> None:
        """Take the difference of the next step. Warn at the first one that is noticeable."""
        if value > NOTICEABLE and all(before <= NOTICEABLE for before in self._values):
            logger.warning(
                "logprobs of training and of sampling differ by %.3g, above %g: %s",
                *(value, NOTICEABLE, _cause([*self._values, value])),
            )
        self._values.append(value)
        self.fault = self.fault or fault_in(self._values, self._most)


def fault_in(values: Sequence[float], most: float) -> str:
    """Return what is wrong with a run whose steps had the differences `values`, and what to do; "" if nothing is."""
    if len(values) < WINDOW:
        return ""
    first, last = median(values[:WINDOW]), median(values[-WINDOW:])
    if last <= most and not last > max(NOTICEABLE, JUMP * first):
        return ""
    return (
        f"logprobs of training and of sampling differ by {last:.3g}, the median of the last {WINDOW} steps; it was "
        f"{first:.3g} in the first {WINDOW} (`trainer.max_logprob_difference` is {most:g}): {_cause(values)}"
    )


def _cause(values: Sequence[float]) -> str:
    """Return the cause that fits: what grows comes from weights, what was there from the start from computation."""
    if median(values[-WINDOW:]) > GROWTH * values[0]:
        return (
            "it grows with the distance from the start, as if the trained weights did not reach the engines. Check the "
            "weight sync"
        )
    return (
        "it was there from the first step, as if training and engines computed attention differently, or had other "
        "weights from the start. Compare their attention backends, and the checkpoint that each loads"
    )
