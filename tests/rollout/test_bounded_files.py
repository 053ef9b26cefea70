"""Files of a run that hold more than any run writes: refused in one line, whatever reads them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from orl_core.config import load_config
from orl_core.errors import ConfigError, OrlError
from orl_rollout.bounded_files import read_lines, read_whole
from orl_rollout.journal.journal import read_journal
from orl_rollout.run_folder import metrics_log
from orl_rollout.run_folder.record import read_record

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


def _load_template(path: Path) -> None:
    config = path.with_name("config.yaml")
    config.write_text("environments: {a/b: {}}\n")
    load_config(config, [f"chat_template={path}"])


@pytest.mark.parametrize("kind", ["pipe", "device"])
@pytest.mark.parametrize(
    "read",
    [*READERS[:2], lambda path: list(read_journal(path)), load_config, _load_template],
    ids=["whole", "lines", "journal", "configuration", "template"],
)
def test_what_is_no_regular_file_is_refused(tmp_path: Path, read: Callable[[Path], Any], kind: str) -> None:
    path = tmp_path / "journal-1.jsonl.zst"
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero")
    with pytest.raises((OSError, OrlError), match="regular file"):
        read(path)


def test_run_with_pipes_for_files_is_read_without(tmp_path: Path) -> None:
    for name in ("config.json", "summary.json", "metrics.jsonl"):
        os.mkfifo(tmp_path / name)
    assert read_record(tmp_path).points == ()


def test_history_that_is_a_pipe_is_none(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "metrics.jsonl")
    assert not metrics_log.read(tmp_path / "metrics.jsonl")


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
