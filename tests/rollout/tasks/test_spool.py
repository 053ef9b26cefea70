"""The spool's memory of what it has seen."""

import os
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from orl_rollout.tasks.spool import Keys, Spool


@given(st.lists(st.integers(1, 2**64 - 1) | st.integers(1, 200).map(lambda n: n * 64), max_size=400))
@example([n * 2**20 for n in range(1, 500)])
def test_a_key_is_new_once(numbers: list[int]) -> None:
    keys, seen = Keys(), set[int]()
    for number in [*numbers, *reversed(numbers)]:
        assert keys.add(number) == (number not in seen)
        seen.add(number)


def test_zero_is_a_key() -> None:
    keys = Keys()
    assert keys.add(0)
    assert not keys.add(0)


@pytest.mark.parametrize("mask", [0o022, 0o077])
def test_who_may_read_the_tasks_is_the_umasks_to_say(tmp_path: Path, mask: int):
    before = os.umask(mask)
    try:
        with Spool(tmp_path) as spool:
            spool.write(tmp_path / "tasks.jsonl", ())
    finally:
        os.umask(before)
    assert (tmp_path / "tasks.jsonl").stat().st_mode & 0o777 == 0o666 & ~mask
    assert [path.name for path in tmp_path.iterdir()] == ["tasks.jsonl"]
