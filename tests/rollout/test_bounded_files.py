"""Files of a run that hold more than any run writes: refused in one line, whatever reads them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from orl_core.errors import ConfigError
from orl_core.task import row_of
from orl_rollout.bounded_files import read_lines, read_whole
from orl_rollout.run_folder import metrics_log
from orl_rollout.run_folder.record import read_record
from orl_rollout.tasks.file import read_tasks

from tests.kit.episodes import config_of, task_of

READERS: list[Callable[[Path], Any]] = [read_whole, lambda path: list(read_lines(path)), metrics_log.read]


@pytest.mark.parametrize("read", READERS, ids=["whole", "lines", "history"])
def test_file_larger_than_any_of_a_run_is_refused(tmp_path: Path, read: Callable[[Path], Any]) -> None:
    path = tmp_path / "metrics.jsonl"
    with path.open("wb") as file:
        file.truncate(1 << 40)  # of zeros, which take no room
    with pytest.raises(ConfigError, match=r"metrics\.jsonl"):
        read(path)


@pytest.mark.parametrize("name", ["config.json", "summary.json", "metrics.jsonl"])
def test_run_with_a_file_larger_than_any_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "config.json").write_bytes(b"{}")
    with (tmp_path / name).open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(ConfigError, match=name):
        read_record(tmp_path)


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
from orl_rollout.bounded_files import replace
child = os.fork()
for _ in range(1_000):
    replace(Path(sys.argv[1]), b"x" * 5_000)
if child:
    sys.exit(os.waitpid(child, 0)[1] != 0)
"""
    path = tmp_path / "summary.json"
    assert subprocess.run([sys.executable, "-c", program, path], check=False).returncode == 0
    assert list(tmp_path.iterdir()) == [path]
