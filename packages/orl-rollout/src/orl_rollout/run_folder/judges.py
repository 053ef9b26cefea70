"""Judges of a run, from the metrics of its steps: no signal, and logprobs that differ.

Each is decided in this one place. Terminal, summary, report and viewer show the first one. Whoever reads the metrics
hands the differences of logprobs over, and ends the run if there is a `fault`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median
from typing import Literal

from msgspec import Struct

from orl_rollout.logs import logger_of
from orl_rollout.run_folder.metrics_log import MetricsRow

logger = logger_of("orl")

STEPS = 3  # in a row that must lack a signal
Cause = Literal["unrewarded", "solved", "failed", "equal"]
REASONS: dict[Cause, str] = {
    "unrewarded": "no result of any episode carried a reward, so each counts as 0. Let the environment return a finite "
    "`reward` with the result that ends an episode",
    "solved": "all rollouts succeeded, so no group had two different rewards. Train on harder tasks",
    "failed": "all rollouts failed, so no group had two different rewards. Train on easier tasks, or look at the "
    "episodes: the model may not know the tools, or may run out of turns or tokens",
    "equal": "no group had two different rewards. Raise n_samples or the temperature, or look at how the environment "
    "rewards",
}

DIFFERENCE = "logprob_difference"  # in metrics.jsonl
WINDOW = 8  # steps, of which the median counts
NOTICEABLE = 0.02  # healthy runs stayed below 0.004: docs/evidence.md
JUMP = 10.0  # times the median of the first steps: a fault above NOTICEABLE
GROWTH = 3.0  # times the first difference: then it grows with the distance from the start


class NoSignal(Struct, frozen=True, kw_only=True):
    """Steps `first` to `last` had no signal. `whole` is True if no step of the run had one."""

    first: int
    last: int
    cause: Cause
    whole: bool

    @property
    def text(self) -> str:
        """Return it in words."""
        return f"No signal in steps {self.first} to {self.last}: {REASONS[self.cause]}."


def no_signal(rows: Iterable[MetricsRow]) -> NoSignal | None:
    """Return the latest steps of training if they had no signal, at least STEPS of them; else None.

    A step counts if it has a group, or if an episode finished and no result had a reward. Others are left out, such as
    those whose rollouts all ended in ERROR.
    """
    known: list[tuple[int, Cause | Literal["signal"]]] = [
        (row.step, cause)
        for row in sorted((row for row in rows if row.kind == "train"), key=lambda row: row.step)
        if (cause := _cause_of(row)) is not None
    ]
    silent: list[tuple[int, Cause]] = []
    for step, cause in reversed(known):
        if cause == "signal":
            break
        silent.append((step, cause))
    if len(silent) < STEPS:
        return None
    causes: set[Cause] = {cause for _, cause in silent}
    if causes == {"unrewarded", "failed"}:  # nobody finished in the other steps
        causes = {"unrewarded"}
    return NoSignal(
        first=silent[-1][0],
        last=silent[0][0],
        cause=causes.pop() if len(causes) == 1 else "equal",
        whole=len(silent) == len(known),
    )


def _cause_of(row: MetricsRow) -> Cause | Literal["signal"] | None:
    """Return why a step had no signal, or that it had one; None if that cannot be known."""
    if row.overall("unrewarded") and row.overall("rewards") == 0.0:
        return "unrewarded"
    if not row.overall("groups"):
        return None
    if row.overall("equal_groups") != 1.0:
        return "signal"
    success = row.overall("success")
    return "solved" if success == 1.0 else "failed" if success == 0.0 else "equal"


class LogprobDrift:
    """Judges the difference between logprobs of training and of sampling. `most` is the greatest healthy median.

    Only fresh rollouts have one to judge: the weights that sampled them are those that train, so what is left is
    rounding. Engines that never get new weights train on without an error otherwise (verl#7495: for two months).
    """

    def __init__(self, most: float) -> None:
        self.fault = ""
        self._most = most
        self._values: list[float] = []

    def add(self, value: float) -> None:
        """Take the difference of the next step. Warn at the first one that is noticeable."""
        noticed = any(before > NOTICEABLE for before in self._values)
        self._values.append(value)
        if value > NOTICEABLE and not noticed:
            text = "logprobs of training and of sampling differ by %.3g, above %g: %s"
            logger.warning(text, value, NOTICEABLE, _cause_in(self._values))
        self.fault = self.fault or fault_in(self._values, self._most)


def fault_in(values: Sequence[float], most: float) -> str:
    """Return the fault of a run with these differences by step, and what to do; "" if none."""
    if len(values) < WINDOW:
        return ""
    first, last = median(values[:WINDOW]), median(values[-WINDOW:])
    if last <= most and not last > max(NOTICEABLE, JUMP * first):
        return ""
    return (
        f"logprobs of training and of sampling differ by {last:.3g}, the median of the last {WINDOW} steps; it was "
        f"{first:.3g} in the first {WINDOW} (`trainer.max_logprob_difference` is {most:g}): {_cause_in(values)}"
    )


def _cause_in(values: Sequence[float]) -> str:
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
