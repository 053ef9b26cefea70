"""Processes that this one ends."""

from __future__ import annotations

import subprocess
from pathlib import Path

from orl_rollout.edge.children import has_mark


def test_mark_is_seen_while_a_process_becomes_another(tmp_path: Path) -> None:
    again = tmp_path / "again.sh"
    again.write_text(f"exec sh {again}\n")
    with subprocess.Popen(["sh", str(again)], env={"MARK": "abc"}) as process:
        try:
            assert all(has_mark(process.pid, "MARK=abc") for _ in range(2_000))
            assert not has_mark(process.pid, "MARK=ab")
        finally:
            process.kill()
