"""Turns and the tokens of a turn that moved in opposite directions since training began.

A run's reward does not show it: in one run turns grew by 56 % while responses lost 80 % of their length, at the same
accuracy (cua-lite#13). This is the one place that decides it, from the metrics of the steps.
"""

from __future__ import annotations

from collections.abc import Iterable
from statistics import fmean
from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from orl_rollout.run_folder.metrics_log import MetricsRow

WINDOW = 5  # steps at each end, of which the means are compared
TURNS = 1.25  # times: turns that changed by less stayed as they were
TOKENS = 2.0  # times: the same for the tokens of a turn


class TurnDrift(Struct, frozen=True, kw_only=True):
    """Means at the beginning of training, and those of the latest steps, the last of which is `step`."""

    step: int
    turns: tuple[float, float]
    tokens: tuple[float, float]

    @property
    def longer(self) -> bool:
        """Tell whether a turn has more tokens than before."""
        return self.tokens[1] > self.tokens[0]

    @property
    def text(self) -> str:
        """Return it in words."""
        advice = (
            "The model may no longer end its actions: look at valid calls, and lower the learning rate"
            if self.longer
            else "The loss may reward short actions: compare reasoning in the first and the last episodes"
        )
        return (
            f"Turns drift apart from their length: turns went from {self.turns[0]:.3g} to {self.turns[1]:.3g}, tokens "
            f"of a turn from {self.tokens[0]:.3g} to {self.tokens[1]:.3g}, at step {self.step}. {advice}."
        )


def turn_drift(rows: Iterable[MetricsRow]) -> TurnDrift | None:
    """Compare the first and the latest WINDOW steps of training. Return None if they did not drift apart.

    Steps without turns are left out: all of their rollouts ended in ERROR.
    """
    known = [
        (row.step, turns, tokens)
        for row in sorted(rows, key=lambda row: row.step)
        if row.kind == "train" and (turns := row.overall("turns")) and (tokens := row.overall("tokens_per_turn"))
    ]
    if len(known) < 2 * WINDOW:
        return None
    first, latest = known[:WINDOW], known[-WINDOW:]
    turns, tokens = ((fmean(row[place] for row in first), fmean(row[place] for row in latest)) for place in (1, 2))
    more, less = turns[1] >= turns[0] * TURNS, turns[0] >= turns[1] * TURNS
    longer, shorter = tokens[1] >= tokens[0] * TOKENS, tokens[0] >= tokens[1] * TOKENS
    drifted = (more and shorter) or (less and longer)
    return TurnDrift(step=latest[-1][0], turns=turns, tokens=tokens) if drifted else None
