"""Child processes that end on a signal, on a timeout, or with this process when it ends by force.

Each child leads its own process group, so its own children end with it; those that leave it can be found by a mark.
Ctrl-C on a terminal reaches this process alone, which decides.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from orl_rollout.edge import interrupt

POLL_SECONDS = 0.05
END_SECONDS = 20.0  # a process group has this long to end before the next signal
FORCED_SECONDS = 2.0  # the same at a forced end
ENDED = (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)


def run(
    command: Sequence[str],
    *,
    environment: Mapping[str, str] | None = None,
    folder: Path | None = None,
    timeout: float,
) -> subprocess.CompletedProcess[str]:
    """Run `command` to its end, with its output and its errors as text.

    Raises:
        OSError: it cannot be started.
        subprocess.TimeoutExpired: it takes longer than `timeout` seconds and was ended.
        Interrupted: a signal came, and it was ended.
    """
    ends = time.monotonic() + timeout
    process = subprocess.Popen(
        list(command),
        env=environment,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    with process, interrupt.released(lambda: kill_group(process.pid)):
        try:
            while time.monotonic() < ends:
                interrupt.check()
                with suppress(subprocess.TimeoutExpired):
                    output, errors = process.communicate(timeout=POLL_SECONDS)
                    return subprocess.CompletedProcess(list(command), process.returncode, output, errors)
            raise subprocess.TimeoutExpired(list(command), timeout)
        finally:
            if process.returncode is None:
                kill_group(process.pid)


def exit_code(process: subprocess.Popen[bytes], check: Callable[[], None] = interrupt.check) -> int:
    """Wait for the end of `process`. `check` is called again and again meanwhile, and may raise.

    Raises:
        Interrupted: a signal came first.
    """
    code: int | None = None
    while code is None:
        interrupt.check()
        check()
        with suppress(subprocess.TimeoutExpired):
            code = process.wait(POLL_SECONDS)
    if code:
        interrupt.check()  # the signal may have ended the process too
    return code


def programs(process: int) -> set[str]:
    """Return the names of the programs that run below a process."""
    names: set[str] = set()
    with suppress(psutil.Error):
        for child in psutil.Process(process).children(recursive=True):
            with suppress(psutil.Error):
                names.add(child.name())
    return names


@contextmanager
def ended(
    process: subprocess.Popen[bytes], signals: Sequence[signal.Signals] = (signal.SIGTERM, signal.SIGKILL)
) -> Generator[None]:
    """End a process and the group it leads at the end of the block. A further Ctrl-C shortens each wait."""
    with interrupt.released(lambda: kill_group(process.pid)):
        try:
            yield
        finally:
            for sent in signals:
                _end(process.pid, sent, END_SECONDS)
            process.wait()


def kill_group(group: int) -> None:
    """End a process group at once: SIGTERM, then SIGKILL. Any thread may call it, and a process of the group."""
    _end(group, signal.SIGTERM, FORCED_SECONDS)
    _end(group, signal.SIGKILL, FORCED_SECONDS)


def send(group: int, sent: signal.Signals) -> bool:
    """Send a signal to a process group. Return whether it has a process, maybe one that nobody has reaped."""
    with suppress(ProcessLookupError):
        os.killpg(group, sent)
        return True
    return False


def kill_marked(mark: str) -> None:
    """Kill the processes that were started with `mark` ("NAME=value") in their environment, in any session.

    One that starts others meanwhile is met again, for FORCED_SECONDS at most. Linux tells the environment of this
    user's processes. A process that got another environment is not found. Any thread may call it.
    """
    ends = time.monotonic() + FORCED_SECONDS
    while (marked := _marked(mark) or _marked(mark)) and time.monotonic() < ends:
        for pid in marked:
            with suppress(psutil.Error):
                process = psutil.Process(pid)  # knows when it began: another process of this id is left alone
                if _has(pid, mark):
                    process.kill()
        time.sleep(POLL_SECONDS)


def _marked(mark: str) -> list[int]:
    """Return the processes with `mark`. One that forks and ends while it looks hides the other: look again."""
    return [pid for pid in psutil.pids() if _has(pid, mark)]


def _has(process: int, mark: str) -> bool:
    try:
        return os.fsencode(mark) in Path(f"/proc/{process}/environ").read_bytes().split(b"\0")
    except OSError:  # it has ended, or belongs to another user
        return False


def _end(group: int, sent: signal.Signals, seconds: float) -> None:
    """Send a signal to a process group, and wait for its end. A further signal to this process ends the wait."""
    before, ends = interrupt.count(), time.monotonic() + seconds
    waits = send(group, sent)
    while waits and _lives(group) and time.monotonic() < ends and interrupt.count() == before:
        time.sleep(POLL_SECONDS)


def _lives(group: int) -> bool:
    """Return whether another process of the group is alive. A zombie, which nobody may ever reap, is not."""
    for process in psutil.pids():
        with suppress(OSError, psutil.Error):  # it has ended meanwhile
            if (
                process != os.getpid()
                and os.getpgid(process) == group
                and psutil.Process(process).status() not in ENDED
            ):
                return True
    return False
