"""A trainer's process: run to its end with its words in a log, ended with everything it started on any way out."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

END_SECONDS = 20.0  # what a group of processes may take to end before it is killed
END_BYTES = 100_000  # of a log that are read for what went wrong
LINE_CHARACTERS = 400
MEMORY = ("OutOfMemoryError", "CUDA out of memory", "HIP out of memory", "OOM-killed", "Out of memory")
_EXCEPTION = re.compile(r"\b[A-Za-z_.]*(?:Error|Exception|Aborted|Interrupt)(?:: |$)")


def run(command: Sequence[str], environment: Mapping[str, str], *, log: Path) -> int:
    """Run `command`, its output appended to `log`; the exit code.

    It leads a process group of its own, which is ended when this function is left, by Ctrl-C too.
    """
    with log.open("ab") as output:
        process = subprocess.Popen(
            list(command),
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            return process.wait()
        finally:
            end_group(process, (signal.SIGINT, signal.SIGTERM, signal.SIGKILL))


def end_group(
    process: subprocess.Popen[bytes], signals: Sequence[signal.Signals] = (signal.SIGTERM, signal.SIGKILL)
) -> None:
    """End a process and the group it leads: asked first, killed where that does not help."""
    for sent in signals:
        try:
            os.killpg(process.pid, sent)
        except ProcessLookupError:
            break
        try:
            process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            continue
    process.wait()


def last_error(log: Path) -> str:
    """The last line of a log that names an exception, or its last line."""
    lines = _end(log)
    named = [line for line in lines if _EXCEPTION.search(line)]
    last = (named or lines or ["it said nothing"])[-1]
    return " ".join(last.split())[:LINE_CHARACTERS]


def ran_out_of_memory(log: Path) -> bool:
    """Whether the end of a log says so."""
    return any(sign in line for line in _end(log) for sign in MEMORY)


def _end(log: Path) -> list[str]:
    if not log.is_file():
        return []
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - END_BYTES))
        return [line for line in file.read().decode("utf-8", "replace").splitlines() if line.strip()]
