"""Differences between logprobs of training and of sampling: healthy runs continue, sick ones end with their cause."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from orl_rollout.run_folder.logprob_drift import NOTICEABLE, WINDOW, LogprobDrift, fault_in

MOST = 0.1
FROZEN = [0.0011 + 0.004 * step for step in range(60)]

# Least, greatest and number of the values behind docs/evidence.md, of fresh rollouts on GPUs.
EVIDENCE = {
    "slime, forty steps": (0.0001, 0.0021, 80),
    "slime gspo": (0.0006, 0.0022, 40),
    "slime turn_advantages": (0.0010, 0.0024, 8),
    "a published model under TRL": (0.0007, 0.0031, 40),
}


def end_of(values: Sequence[float], most: float = MOST) -> int | None:
    """The step at which a run with these differences ends."""
    return next((end for end in range(1, len(values) + 1) if fault_in(values[:end], most)), None)


@pytest.mark.parametrize("name", EVIDENCE)
def test_run_of_evidence_goes_on(name: str) -> None:
    """The worst order that fits the figures: all small values first, then the greatest."""
    least, greatest, number = EVIDENCE[name]
    assert end_of([least] * WINDOW + [greatest] * (number + WINDOW)) is None


@given(st.lists(st.floats(0, NOTICEABLE), max_size=60))
def test_small_differences_never_end_a_run(values: list[float]) -> None:
    assert end_of(values) is None


@given(st.lists(st.floats(0, 0.01), min_size=20, max_size=40), st.data())
def test_single_outliers_never_end_a_run(values: list[float], data: st.DataObject) -> None:
    for at in data.draw(st.sets(st.integers(0, len(values) - 1), max_size=3)):
        values[at] = 10.0
    assert end_of(values) is None


def test_frozen_weights_are_named_early() -> None:
    end = end_of(FROZEN)
    assert end is not None
    assert end <= 40
    told = fault_in(FROZEN[:end], MOST)
    assert "weight sync" in told
    assert "attention" not in told


def test_late_freeze_is_found_by_its_jump() -> None:
    values = [0.001] * 40 + [0.001 + 0.004 * step for step in range(20)]
    end = end_of(values)
    assert end is not None
    assert values[end - 1] < MOST, "the jump shows before the bound"
    assert "weight sync" in fault_in(values[:end], MOST)


def test_constant_difference_names_attention() -> None:
    assert end_of([0.12] * 20) == WINDOW
    told = fault_in([0.12] * WINDOW, MOST)
    assert "attention" in told
    assert "weight sync" not in told


@pytest.mark.parametrize(("most", "end"), [(0.1, None), (0.04, WINDOW)])
def test_bound_is_the_users(most: float, end: int | None) -> None:
    assert end_of([0.05] * 30, most) == end


def test_noticeable_difference_warns_once(caplog: pytest.LogCaptureFixture) -> None:
    drift = LogprobDrift(MOST)
    with caplog.at_level(logging.WARNING, logger="orl"):
        for value in (0.001, 0.03, 0.03, 0.03):
            drift.add(value)
    assert len(caplog.records) == 1
    assert not drift.fault


def test_fault_stays() -> None:
    drift = LogprobDrift(MOST)
    for value in [0.2] * WINDOW + [0.0] * WINDOW:
        drift.add(value)
    assert drift.fault
