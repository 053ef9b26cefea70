"""Files of a run: torn ones, pipes, and several writers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec
from orl_core.task import row_of
from orl_rollout.run_folder.record import read_record
from orl_rollout.tasks.file import read_tasks

from tests.kit.episodes import config_of, task_of


def test_run_with_endless_nesting_is_read_without(tmp_path: Path) -> None:
    for name in ("config.json", "summary.json", "metrics.jsonl"):
        (tmp_path / name).write_bytes(b"[" * 1_000_000)
    assert read_record(tmp_path).points == ()


def test_tasks_are_read_from_a_pipe() -> None:
    """`<(command)` of a shell is such a path."""
    row = msgspec.json.encode(row_of(task_of("Echo")))
    reading, writing = os.pipe()
    try:
        os.write(writing, row + b"\n")
        os.close(writing)
        assert [*read_tasks(f"/dev/fd/{reading}", config_of("Echo", "http://127.0.0.1:1"))] == [task_of("Echo")]
    finally:
        os.close(reading)


def test_forked_processes_replace_the_same_file(tmp_path: Path) -> None:
    """The threads of a fork have the same idents as those of its parent."""
    program = """
import os, sys
from pathlib import Path
from orl_rollout.edge.files import replace
child = os.fork()
for _ in range(1_000):
    replace(Path(sys.argv[1]), b"x" * 5_000)
if child:
    sys.exit(os.waitpid(child, 0)[1] != 0)
"""
    path = tmp_path / "summary.json"
    assert subprocess.run([sys.executable, "-c", program, path], check=False).returncode == 0
    assert list(tmp_path.iterdir()) == [path]
