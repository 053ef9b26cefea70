"""The night's judge finds what it is there for; the scenarios themselves run in `test_benchmarks`, small."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from orl_core.trajectory import StopReason, Trajectory
from orl_rollout.episodes.frames import frame
from orl_rollout.episodes.journal import encode_entry

from benchmarks.night.driver import Returned
from benchmarks.night.plan import Planned, planned
from benchmarks.night.verdict import Verdict, judge, named_in
from tests.kit.journalled import entry_of, trajectory_of

ONE = Planned(name="one", turns=2, final=1.0)
WELL = "finished", ONE.reward


def record(folder: Path, stop: str, reward: float) -> None:
    played = trajectory_of(key=ONE.name, turns=ONE.turns)
    ended: Trajectory = msgspec.structs.replace(played, stop_reason=StopReason(stop), error="x" * (stop == "error"))
    with (folder / "journal-1.jsonl.zst").open("ab") as file:
        file.write(frame(encode_entry(msgspec.structs.replace(entry_of(ended), reward=reward))))


def judged(folder: Path, *records: tuple[str, float], returned: bool = False) -> tuple[int, int]:
    """Return how many of one begun rollout are lost, and how many are counted wrongly."""
    for stop, reward in records:
        record(folder, stop, reward)
    begun, told = folder / "begun", folder / "returned"
    begun.write_bytes(b'"one"\n')
    if returned:
        told.write_bytes(msgspec.json.encode(Returned(name="one", reward=ONE.reward, stop_reason="finished")))
    verdict = Verdict(scenario="s")
    judge(verdict, folder, [ONE], begun, told)
    return verdict.lost, verdict.wrong


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
def test_judge_counts_lost_and_miscounted(tmp_path: Path, records: list[tuple[str, float]], found: tuple[int, int]):
    assert judged(tmp_path, *records) == found


def test_returned_rollout_that_is_not_recorded_is_lost(tmp_path: Path):
    assert judged(tmp_path, returned=True) == (1, 0)


def test_sessions_are_named_by_journal_and_list(tmp_path: Path):
    record(tmp_path, *WELL)
    (tmp_path / "sessions-1.jsonl").write_text('{"sid": "s-7", "environment": "a/b"}\n{"sid": "s-', encoding="utf-8")
    assert named_in(tmp_path) >= {"one", "s-7"}
    assert "s-8" not in named_in(tmp_path)


def test_plan_depends_on_its_seed_alone():
    assert planned("a", 20, 1) == planned("a", 20, 1)
    assert planned("a", 20, 1) != planned("a", 20, 2)
