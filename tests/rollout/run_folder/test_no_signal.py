"""Steps without a signal are told apart by their cause; a step that had one ends the stretch."""

from __future__ import annotations

import pytest
from orl_core.config import EnvironmentConfig, RunConfig
from orl_rollout.run_folder.judges import no_signal
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
