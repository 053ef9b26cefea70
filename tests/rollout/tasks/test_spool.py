"""Who may read the file of tasks."""

import os
from pathlib import Path

import pytest
from orl_rollout.tasks.spool import Spool


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
