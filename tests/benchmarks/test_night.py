"""The night's judge finds what it is there for; the scenarios themselves run in `test_benchmarks`, small."""

from __future__ import annotations

import msgspec
import pytest
from orl_core.trajectory import StopReason
from orl_rollout import Entry

from benchmarks.night import Planned, judge, planned
from tests.kit.journalled import entry_of, trajectory_of

ONE = Planned(number=7, turns=2, final=1.0)
WELL = "finished", ONE.reward


def record(stop: str, reward: float) -> Entry:
    played = trajectory_of(key=f"{ONE.task.key}/0", turns=ONE.turns)
    ended = msgspec.structs.replace(played, stop_reason=StopReason(stop), error="x" * (stop == "error"))
    return msgspec.structs.replace(entry_of(ended), reward=reward)


@pytest.mark.parametrize(
    ("records", "found"),
    [
        ([WELL], (0, 0)),
        ([("error", 0.0), WELL], (0, 0)),
        ([], (1, 0)),
        ([("error", 0.0)], (1, 0)),
        ([("aborted", 0.0)], (1, 0)),
        ([("finished", 0.0)], (0, 1)),
        ([WELL, WELL], (0, 1)),
        ([WELL, ("error", 0.0)], (1, 1)),
    ],
)
def test_judge_counts_lost_and_miscounted(records: list[tuple[str, float]], found: tuple[int, int]):
    assert judge([ONE], [record(*one) for one in records]) == found


def test_plan_depends_on_its_seed_alone():
    assert planned("a", 20, 1) == planned("a", 20, 1)
    assert planned("a", 20, 1) != planned("a", 20, 2)
