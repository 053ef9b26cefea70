"""Processes of the night: servers at a port of their own, and programs. Each is ended by its id when its scenario ends.

A server reads its settings from stdin, prints its address, and goes when stdin closes (`benchmarks.servers`), so that
none outlives the benchmark. It can be killed and started again at the same address.
"""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from benchmarks.servers import ROOT, child_environment

POLL = 0.1  # seconds between two looks at a process or a file
START_SECONDS = 120.0  # for a server to import its libraries on a loaded machine
STOP_SECONDS = 10.0
PORTS = range(20_000, 32_000)  # below those that the kernel gives to clients, so that a dead server's port stays free


class NotInTime(Exception):
    """A wait of the benchmark reached its bound."""


def free_port() -> int:
    """Return a port of loopback that nobody listens on and that no client is given."""
    for port in random.SystemRandom().sample(PORTS, 100):
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise RuntimeError("no port of loopback is free")


def until(true: Callable[[], object], seconds: float, what: str) -> None:
    """Wait until `true` holds.

    Raises:
        NotInTime: it does not within `seconds`.
    """
    ends = time.monotonic() + seconds
    while not true():
        if time.monotonic() > ends:
            raise NotInTime(f"{what}: not within {seconds:g} s")
        time.sleep(POLL)


class ServerProcess:
    """`python -m benchmarks.night.MODULE` at an address that stays: `start`, `kill` and `start` again."""

    def __init__(self, module: str, **settings: Any) -> None:
        self._module = f"benchmarks.night.{module}"
        self.port = free_port()
        self._settings = {**settings, "port": self.port}
        self._process: subprocess.Popen[str] | None = None
        self.url = f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.kill()

    def start(self) -> None:
        """Start the server, and wait until it listens."""
        process = subprocess.Popen(
            [sys.executable, "-m", self._module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env=child_environment(),
            start_new_session=True,
        )
        self._process = process
        if process.stdin is None or process.stdout is None:
            raise RuntimeError("a server's pipes are missing")
        process.stdin.write(json.dumps(self._settings) + "\n")
        process.stdin.flush()
        until(self._listens, START_SECONDS, f"{self._module} listens")

    def kill(self) -> None:
        """End the server by SIGKILL, as an accident does."""
        if (process := self._process) is None:
            return
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
        self._process = None

    def ask(self, path: str) -> Any:
        """Return the server's JSON for a question of the benchmark."""
        with urllib.request.urlopen(f"{self.url}{path}", timeout=30.0) as answer:
            return json.load(answer)

    def _listens(self) -> bool:
        if self._process is None or self._process.poll() is not None:
            raise RuntimeError(f"{self._module} did not start")
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0


class Program:
    """A program whose output goes to the file `log`. `end` ends its process group by id."""

    def __init__(
        self, words: Sequence[str], log: Path, *, folder: Path = ROOT, more: Mapping[str, str] | None = None
    ) -> None:
        self.log = log
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                list(words),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=folder,
                env={**child_environment(), **(more or {})},
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """Return its id."""
        return self._process.pid

    def code(self) -> int | None:
        """Return the exit code; None while it runs."""
        return self._process.poll()

    def wait(self, seconds: float) -> int | None:
        """Return the exit code; None if it still runs after `seconds`."""
        with suppress(subprocess.TimeoutExpired):
            return self._process.wait(seconds)
        return None

    def kill(self) -> None:
        """End the program alone by SIGKILL, as an accident does; what it started may notice."""
        self._process.kill()
        self._process.wait()

    def end(self) -> None:
        """End what is left of it: politely, then for certain."""
        if self._process.poll() is None:
            self._send(signal.SIGTERM)
            if self.wait(STOP_SECONDS) is None:
                self._send(signal.SIGKILL)
                self._process.wait()

    def output(self) -> str:
        """Return what it wrote."""
        return self.log.read_text(encoding="utf-8", errors="replace")

    def _send(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)


@contextmanager
def program(
    words: Sequence[str], log: Path, *, folder: Path = ROOT, more: Mapping[str, str] | None = None
) -> Generator[Program]:
    """Run a program for the length of the block."""
    running = Program(words, log, folder=folder, more=more)
    try:
        yield running
    finally:
        running.end()
