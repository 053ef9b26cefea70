"""The judges of a run: steps without a signal, and logprobs that differ."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from orl_core.config import EnvironmentConfig, RunConfig
from orl_rollout.run_folder.judges import WINDOW, LogprobDrift, fault_in, no_signal
from orl_rollout.run_folder.metrics_log import MetricsRow
from orl_rollout.run_folder.summary import Summary

GROUPS = {"groups": 8.0, "equal_groups": 1.0, "rewards": 64.0, "unrewarded": 0.0}
FAILED = {**GROUPS, "success": 0.0}
SOLVED = {**GROUPS, "success": 1.0}
EVEN = {**GROUPS, "success": 0.5}
LEARNING = {**EVEN, "equal_groups": 0.875}
UNREWARDED = {**FAILED, "rewards": 0.0, "unrewarded": 40.0}
UNFINISHED = {**FAILED, "rewards": 0.0}
BROKEN = {"groups": 0.0, "equal_groups": 0.0, "rollouts": 64.0, "judged": 0.0, "unrewarded": 0.0, "rewards": 0.0}
OTHER_ESTIMATOR = {"success": 0.0, "rewards": 64.0, "unrewarded": 0.0}
GIVEN_UP = {**LEARNING, "unrewarded": 1.0}  # one episode ended without a reward, and others were rewarded before
NONTERMINAL = {**UNREWARDED, "equal_groups": 0.5}  # groups differ by the nonterminal reward alone


def rows(*steps: dict[str, float], first: int = 1) -> list[MetricsRow]:
    return [
        MetricsRow(step=step, kind="train", metrics={f"A/B/{name}": value for name, value in metrics.items()})
        for step, metrics in enumerate(steps, first)
    ]


@pytest.mark.parametrize(
    ("steps", "cause"),
    [
        ([FAILED] * 3, "failed"),
        ([SOLVED] * 3, "solved"),
        ([EVEN] * 3, "equal"),
        ([SOLVED, FAILED, SOLVED], "equal"),
        ([UNREWARDED] * 3, "unrewarded"),
        ([UNREWARDED, UNFINISHED, UNREWARDED], "unrewarded"),
        ([NONTERMINAL] * 3, "unrewarded"),
        ([FAILED] * 2, None),
        ([FAILED, FAILED, LEARNING], None),
        ([FAILED, LEARNING, FAILED, FAILED], None),
        ([BROKEN] * 3, None),
        ([OTHER_ESTIMATOR] * 3, None),
        ([GIVEN_UP] * 3, None),
        ([], None),
    ],
)
def test_three_steps_without_signal_have_a_cause(steps: list[dict[str, float]], cause: str | None) -> None:
    found = no_signal(rows(*steps))
    assert (found and found.cause) == cause


def test_stretch_names_its_steps_and_whether_it_is_the_run() -> None:
    part = no_signal(rows(LEARNING, FAILED, BROKEN, FAILED, FAILED, first=11))
    whole = no_signal(rows(FAILED, BROKEN, FAILED, FAILED))
    assert part is not None
    assert whole is not None
    assert (part.first, part.last, part.whole) == (12, 15, False)
    assert (whole.first, whole.last, whole.whole) == (1, 4, True)
    assert "12 to 15" in part.text


def test_evaluations_are_no_steps() -> None:
    held_out = [MetricsRow(step=step, kind="eval", metrics={"A/B/success": 0.5}) for step in range(3)]
    assert no_signal([*held_out, *rows(FAILED, FAILED)]) is None


def test_several_environments_are_judged_together() -> None:
    metrics = {"A/B/groups": 2.0, "A/B/equal_groups": 1.0, "all/groups": 4.0, "all/equal_groups": 0.5}
    assert no_signal([MetricsRow(step=step, kind="train", metrics=metrics) for step in range(1, 5)]) is None


def test_summary_says_that_steps_had_no_signal() -> None:
    config = RunConfig(environments={"A/B": EnvironmentConfig()})
    assert b"no group had two different rewards" in Summary.of(config, rows(*[FAILED] * 3)).encode()
    assert b"no_signal" not in Summary.of(config, rows(*[LEARNING] * 3)).encode()


MOST = 0.1
FROZEN = [0.0011 + 0.004 * step for step in range(60)]


def end_of(values: Sequence[float], most: float = MOST) -> int | None:
    """The step at which a run with these differences ends."""
    return next((end for end in range(1, len(values) + 1) if fault_in(values[:end], most)), None)


def test_healthy_run_goes_on() -> None:
    """Of fresh rollouts on GPUs, the least and the greatest were 0.0001 and 0.0031. The small ones come first."""
    assert end_of([0.0001] * WINDOW + [0.0031] * (80 + WINDOW)) is None


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
