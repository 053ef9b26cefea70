"""Steps that had nothing to learn from: all rewards of each group were equal, or no reward came at all.

This is the one place that decides it, from the metrics of the steps. Terminal, summary, report and viewer show it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Literal

from msgspec import Struct

if TYPE_CHECKING:
    from orl_rollout.run_folder.metrics_log import MetricsRow

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


class NoSignal(Struct, frozen=True, kw_only=True):
    """Steps `first` to `last` had no signal. `whole` tells that no step of the run had one."""

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
    steps = sorted((row for row in rows if row.kind == "train"), key=lambda row: row.step)
    known: list[tuple[int, Cause | Literal["signal"]]] = [
        (row.step, cause) for row in steps if (cause := _cause(row)) is not None
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


def _cause(row: MetricsRow) -> Cause | Literal["signal"] | None:
    """Return why a step had no signal, or that it had one; None if that cannot be known."""
    if row.overall("unrewarded") and row.overall("rewards") == 0.0:
        return "unrewarded"
    if not row.overall("groups"):
        return None
    if row.overall("equal_groups") != 1.0:
        return "signal"
    success = row.overall("success")
    return "solved" if success == 1.0 else "failed" if success == 0.0 else "equal"
