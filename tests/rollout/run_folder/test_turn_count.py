"""Answered turns and open rollouts of a process can be read by another one."""

from __future__ import annotations

from pathlib import Path

import pytest
from orl_core.trajectory import Generation
from orl_rollout.run_folder import turn_count
from orl_rollout.run_folder.turn_count import CountingEngine, TurnCount, Turns
from orl_testing import ScriptedEngine


def generation_of(token: int) -> Generation:
    return Generation(token_ids=(token,), logprobs=(-1.0,), finish_reason="length")


def test_open_rollouts_are_named_while_they_are_open(tmp_path: Path) -> None:
    count = TurnCount(str(tmp_path))
    with count.opened("A/B first"), count.opened("A/B second"):
        assert turn_count.read(tmp_path) == Turns(open=2, oldest=("A/B first", "A/B second"))
    assert turn_count.read(tmp_path) == Turns()


async def test_answers_of_the_engine_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turn_count, "PERIOD", 0.0)
    engine = CountingEngine(ScriptedEngine([generation_of(5), generation_of(6)]), TurnCount(str(tmp_path)))
    for _ in range(2):
        await engine.generate([1], {"max_new_tokens": 4, "stop_token_ids": [0]}, key="a")
    assert turn_count.read(tmp_path).answered == 2


def test_turns_in_quick_succession_are_one_write(tmp_path: Path) -> None:
    count = TurnCount(str(tmp_path))
    for _ in range(100):
        count.answered()
    assert turn_count.read(tmp_path).answered == 1, "the first is written, the others within the period are not"
    with count.opened("A/B"):
        assert turn_count.read(tmp_path).answered == 100


def test_torn_file_and_missing_folder_are_no_turns(tmp_path: Path) -> None:
    (tmp_path / "turns-host-1.json").write_bytes(b'{"answered": 3')
    assert turn_count.read(tmp_path) == Turns()
    TurnCount(str(tmp_path / "gone")).answered()
    TurnCount("").answered()
    turn_count.clear(tmp_path)
    assert list(tmp_path.iterdir()) == []
