"""Turns and the tokens of a turn: a healthy run is not warned of, one in which they drift apart is."""

from __future__ import annotations

import pytest
from orl_rollout.run_folder.judges import ENDS, turn_drift
from orl_rollout.run_folder.metrics_log import MetricsRow

Ends = tuple[float, float]
STEPS = 30


def rows(turns: Ends, tokens: Ends, steps: int = STEPS) -> list[MetricsRow]:
    """A run whose figures go from the first to the second value in even steps."""

    def at(ends: Ends, step: int) -> float:
        return ends[0] + (ends[1] - ends[0]) * step / (steps - 1)

    return [
        MetricsRow(
            step=step + 1,
            kind="train",
            metrics={"A/B/turns": at(turns, step), "A/B/tokens_per_turn": at(tokens, step)},
        )
        for step in range(steps)
    ]


@pytest.mark.parametrize(
    ("turns", "tokens", "longer"),
    [
        ((5.0, 7.8), (300.0, 60.0), False),  # cua-lite#13
        ((3.5, 1.2), (8.0, 48.0), True),
        ((3.5, 3.2), (8.0, 8.0), None),  # `just train-local`
        ((2.0, 4.0), (11.0, 11.0), None),
        ((3.0, 6.0), (50.0, 200.0), None),  # both grow: longer episodes, longer thoughts
        ((3.0, 3.1), (200.0, 50.0), None),
        ((3.0, 1.0), (11.0, 13.0), None),
    ],
)
def test_opposite_trends_alone_are_a_drift(turns: Ends, tokens: Ends, longer: bool | None) -> None:
    drift = turn_drift(rows(turns, tokens))
    assert (drift and drift.longer) == longer


def test_drift_names_its_figures() -> None:
    drift = turn_drift(rows((2.0, 4.0), (40.0, 4.0)))
    assert drift is not None
    assert drift.step == STEPS
    assert all(figure in drift.text for figure in (f"{drift.turns[1]:.3g}", f"{drift.tokens[1]:.3g}", str(STEPS)))


def test_few_steps_are_not_compared() -> None:
    assert turn_drift(rows((2.0, 8.0), (40.0, 4.0), steps=2 * ENDS - 1)) is None


def test_steps_without_turns_are_left_out() -> None:
    broken = [MetricsRow(step=step, kind="train", metrics={"A/B/rollouts": 8.0}) for step in range(100, 120)]
    old = [MetricsRow(step=step, kind="train", metrics={"A/B/turns": 3.0}) for step in range(200, 220)]
    drift = turn_drift([*rows((2.0, 8.0), (40.0, 4.0)), *broken, *old])
    assert drift is not None
    assert drift.step == STEPS


def test_evaluations_are_no_steps() -> None:
    held_out = [MetricsRow(step=row.step, kind="eval", metrics=row.metrics) for row in rows((2.0, 8.0), (40.0, 4.0))]
    assert turn_drift(held_out) is None
