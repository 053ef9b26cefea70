"""A child process whose output goes to a log, ended with all its children on any way out.

Its output goes through a process that takes secrets' values out (`scrub`), since a program may print whatever it has.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, cast

from orl_core.credentials import has_login, takes_secret

from orl_rollout.edge import children

WORKING_FOLDER = "PWD"  # a shell's variable, whose name is also a password's


@contextmanager
def running(
    command: Sequence[str],
    environment: Mapping[str, str],
    *,
    log: Path,
    hidden: Iterable[str],
    signals: Sequence[signal.Signals] = (signal.SIGTERM, signal.SIGKILL),
) -> Generator[subprocess.Popen[bytes]]:
    """Yield the process of `command`, which leads a process group. `signals` end the group with the block.

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
        with children.ended(process, signals):
            yield process


def guarded(command: Sequence[str]) -> list[str]:
    """Return a command that runs `command` and ends its process group when this process dies, also by SIGKILL."""
    return [sys.executable, "-m", "orl_rollout.run_folder.guard", str(os.getpid()), *command]


def free_port() -> int:
    """Return a port of loopback that nobody listens on now."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return int(bound.getsockname()[1])


@contextmanager
def _scrubbing(log: Path, environment: Mapping[str, str], hidden: Iterable[str]) -> Generator[IO[bytes]]:
    """Yield the end of a pipe that leads into `log`, with the values of secret variables of `environment` taken out.

    Secret are the variables `hidden`, those whose name says so, and those that hold a login. The log is complete when
    the block is left, if every process that writes to it has ended.
    """
    named = (name for name in environment if takes_secret(name) and name != WORKING_FOLDER)
    telling = (*named, *(name for name, value in environment.items() if has_login(value)))
    with log.open("ab") as file:
        scrub = subprocess.Popen(
            [sys.executable, "-m", "orl_rollout.run_folder.scrub", *dict.fromkeys((*hidden, *telling))],
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
            scrub.wait(children.END_SECONDS)
        scrub.kill()
        scrub.wait()
