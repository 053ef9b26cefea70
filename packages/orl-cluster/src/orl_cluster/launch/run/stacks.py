"""Writes the stacks of the Python processes of a run, if py-spy is installed: where a trainer hangs."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
from orl_rollout.edge import children
from orl_rollout.logs import shown

PROCESS_SECONDS, ALL_SECONDS = 10.0, 60.0  # for the stacks of one process, and of all
SCRUB = "orl_rollout.run_folder.scrub"  # our own, which copies the log


def write_stacks(path: Path) -> str:
    """Write the stacks of all Python processes below this one to `path`. Return a sentence about them.

    The processes of Ray on other nodes, or of a cluster that was not started here, are not below this one.
    """
    program = shutil.which("py-spy")
    if program is None:
        return "For the stacks of its processes, install py-spy"
    ends = time.monotonic() + ALL_SECONDS
    stacks = [_stack_of(program, pid) for pid in _python_processes() if time.monotonic() < ends]
    lines = [shown(line) for stack in stacks for line in [*stack.splitlines(), ""]]
    try:
        path.write_text("\n".join(lines), encoding="utf-8")
    except OSError as fault:  # a full disk
        return f"Its stacks cannot be written: {fault}"
    return f"The stacks of its processes are in {path}"


def _python_processes() -> Iterator[int]:
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):  # it has ended
            words = process.cmdline()
            if words and SCRUB not in words and ("python" in words[0] or words[0].startswith("ray::")):
                yield process.pid


def _stack_of(program: str, pid: int) -> str:
    try:
        done = children.run([program, "dump", "--pid", str(pid)], timeout=PROCESS_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as fault:
        return f"{pid}: {fault}"
    return done.stdout or f"{pid}: {done.stderr}"
