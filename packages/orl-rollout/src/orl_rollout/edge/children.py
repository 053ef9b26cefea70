"""Child processes that end on a signal, on a timeout, or with this process when it ends by force.

Each child leads its own process group, so its own children end with it; those that leave it can be found by a mark.
Ctrl-C on a terminal reaches only this process, which decides. The output of `running` goes to a log through a process
that takes secrets' values out, since a program may print whatever it has. Run as a program, the module is that process
(`scrub`), or one that ends a command when this process dies (`guard`).
"""

from __future__ import annotations

import codecs
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, cast

import psutil
from orl_core.credentials import has_login, takes_secret

from orl_rollout.edge import interrupt
from orl_rollout.edge.secrets import Scrubber

POLL_SECONDS = 0.05
END_SECONDS = 20.0  # a process group has this long to end before the next signal
EXEC_LOOKS, EXEC_SECONDS = 50, 0.001  # at a process that becomes another program
FORCED_SECONDS = 2.0  # the same at a forced end
ENDED = (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
WORKING_FOLDER = "PWD"  # a shell's variable, whose name is also a password's
GUARD_SECONDS = 0.2  # between two looks at the parent
IDLE_SECONDS = 0.5  # then the text that was held back is written: a log that is followed should not lag
BLOCK = 1 << 16


def run(
    command: Sequence[str],
    *,
    environment: Mapping[str, str] | None = None,
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
def piped(module: str) -> Generator[tuple[subprocess.Popen[bytes], socket.socket]]:
    """Run `module` at the other end of a pipe, and kill its group with the block. It calls `pipe_of_parent`."""
    ours, its = socket.socketpair()
    with ours:
        with its:
            words = [sys.executable, "-P", "-m", module, str(its.fileno()), str(os.getpid())]
            process = subprocess.Popen(words, stdin=subprocess.DEVNULL, pass_fds=[its.fileno()], start_new_session=True)
        with ended(process, (signal.SIGKILL,)):
            yield process, ours


def pipe_of_parent(seconds: float = 0.0) -> socket.socket:
    """Return this process's end of the pipe of `piped`. It lives at most `seconds` longer than its parent.

    A signal that goes to all processes of a group leaves the end to the parent.
    """
    for number in interrupt.SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    descriptor, parent = map(int, sys.argv[1:])
    threading.Thread(target=_end_with, args=(parent, seconds), name="orl-parent", daemon=True).start()
    return socket.socket(fileno=descriptor)


def _end_with(parent: int, seconds: float) -> None:
    while os.getppid() == parent:
        time.sleep(GUARD_SECONDS)
    time.sleep(seconds)
    os._exit(1)


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
                if has_mark(pid, mark):
                    process.kill()
        time.sleep(POLL_SECONDS)


def _marked(mark: str) -> list[int]:
    """Return the processes with `mark`. One that forks and ends while it looks hides the other: look again."""
    return [pid for pid in psutil.pids() if has_mark(pid, mark)]


def has_mark(process: int, mark: str) -> bool:
    """Tell whether a process has `mark` in its environment.

    One that becomes another program (exec) shows no environment for a moment: it is asked again.
    """
    folder = Path(f"/proc/{process}")
    with suppress(OSError):  # it has ended, or belongs to another user or the kernel
        for _ in range(EXEC_LOOKS):
            if environment := (folder / "environ").read_bytes():
                return os.fsencode(mark) in environment.split(b"\0")
            (folder / "exe").readlink()  # the kernel's have no program, and none that ended has
            time.sleep(EXEC_SECONDS)
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


@contextmanager
def running(
    command: Sequence[str],
    environment: Mapping[str, str],
    *,
    log: Path,
    hidden: Iterable[str],
    signals: Sequence[signal.Signals] = (signal.SIGTERM, signal.SIGKILL),
) -> Generator[subprocess.Popen[bytes]]:
    """Yield the process of `command`, a group leader. `signals` end the group with the block.

    Its output is appended to `log` without the values of the variables `hidden`.
    """
    with _scrubbing(log, environment, hidden) as output:
        process = subprocess.Popen(
            list(command),
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        with ended(process, signals):
            yield process


def guarded(command: Sequence[str]) -> list[str]:
    """Return a command that runs `command` and ends its process group when this process dies, also by SIGKILL."""
    return [sys.executable, "-m", __name__, "guard", str(os.getpid()), *command]


def free_port() -> int:
    """Return a port of loopback that nobody listens on now."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return int(bound.getsockname()[1])


@contextmanager
def _scrubbing(log: Path, environment: Mapping[str, str], hidden: Iterable[str]) -> Generator[IO[bytes]]:
    """Yield a pipe into `log` that takes out secrets of `environment`.

    Secret are the variables `hidden`, those whose name says so, and those that hold a login. The log is complete when
    the block is left, if every process that writes to it has ended.
    """
    named = (name for name in environment if takes_secret(name) and name != WORKING_FOLDER)
    telling = (*named, *(name for name, value in environment.items() if has_login(value)))
    with log.open("ab") as file:
        scrub = subprocess.Popen(
            [sys.executable, "-m", __name__, "scrub", *dict.fromkeys((*hidden, *telling))],
            env=dict(environment),
            stdin=subprocess.PIPE,
            stdout=file,
            stderr=file,
            start_new_session=True,
        )
    try:
        with cast("IO[bytes]", scrub.stdin) as output:
            yield output
    finally:
        with suppress(subprocess.TimeoutExpired):  # a process that left its group may still hold the pipe
            scrub.wait(END_SECONDS)
        scrub.kill()
        scrub.wait()


def _guard(words: Sequence[str]) -> int:
    """Run the command behind the first word. End this process group when the process with that id dies.

    A change of its own parent tells it that the process died. This needs no pipe, which other children could hold open.
    Return the exit code of the command, 128 and the signal's number if a signal ended it.
    """
    parent, child = int(words[0]), subprocess.Popen(words[1:])
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the group gets it, and the command decides when to end
    while os.getppid() == parent:
        try:
            code = child.wait(GUARD_SECONDS)
        except subprocess.TimeoutExpired:
            continue
        return code if code >= 0 else 128 - code
    kill_group(os.getpgrp())
    return 128 + signal.SIGKILL


def _scrub(names: Sequence[str]) -> None:
    """Copy stdin to stdout without the values of the variables `names` (law L6).

    Text that may be the beginning of a value is held back until more comes. It is a process of its own, so that the log
    continues when the process that started both is killed.
    """
    scrubber = Scrubber(os.environ.get(name, "") for name in names)
    decode = codecs.getincrementaldecoder("utf-8")("surrogateescape").decode
    held, over = "", False
    while not over:
        block = b""
        if select.select([sys.stdin], [], [], IDLE_SECONDS if held else None)[0]:
            block = os.read(sys.stdin.fileno(), BLOCK)
            over = not block
        held += decode(block, over)
        cut = scrubber.settled(held) if block else len(held)
        _write(scrubber.scrub(held[:cut]).encode("utf-8", "surrogateescape"))
        held = held[cut:]


def _write(text: bytes) -> None:
    """Write `text`, or lose it on a full disk: the process whose log it is must not end for that."""
    rest = memoryview(text)
    with suppress(OSError):
        while rest:
            rest = rest[os.write(sys.stdout.fileno(), rest) :]


PROGRAMS = {"guard": _guard, "scrub": _scrub}

if __name__ == "__main__":
    sys.exit(PROGRAMS[sys.argv[1]](sys.argv[2:]))
