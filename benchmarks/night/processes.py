"""Processes of the night. Each process is ended by its id when its scenario ends.

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
import time
import urllib.request
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self

from benchmarks.servers import ROOT, child_environment, start_server

POLL = 0.1  # seconds between two looks at a process or a file
START_SECONDS = 300.0  # for a server to import its libraries on a loaded machine
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
    """Wait until `true` holds, or raise NotInTime after `seconds`."""
    ends = time.monotonic() + seconds
    while not true():
        if time.monotonic() > ends:
            raise NotInTime(f"{what}: not within {seconds:g} s")
        time.sleep(POLL)


class ServerProcess:
    """`python -m benchmarks.MODULE` at an address that stays: `start`, `kill` and `start` again."""

    def __init__(self, module: str, **settings: Any) -> None:
        self._module = module
        self._port = free_port()
        self._settings = {**settings, "port": self._port}
        self._process: subprocess.Popen[str] | None = None
        self.url = f"http://127.0.0.1:{self._port}"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self.kill()

    @property
    def runs(self) -> bool:
        """Tell whether the server has been started, and not killed since."""
        return self._process is not None

    def start(self) -> None:
        """Start the server, and wait until it listens."""
        self._process = start_server(self._module, self._settings)
        until(self._listens, START_SECONDS, f"{self._module} listens")

    def kill(self) -> None:
        """End the server by SIGKILL, as an accident does."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def ask(self, path: str) -> Any:
        """Return the server's JSON for a question of the benchmark."""
        with urllib.request.urlopen(f"{self.url}{path}", timeout=30.0) as answer:
            return json.load(answer)

    def _listens(self) -> bool:
        if self._process is None or self._process.poll() is not None:
            raise RuntimeError(f"{self._module} did not start")
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self._port)) == 0


class Program:
    """A program whose output goes to the file `log`. `end` ends its process group by id."""

    def __init__(self, words: Sequence[str], log: Path) -> None:
        self.log = log
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                list(words),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=ROOT,
                env=child_environment(),
                start_new_session=True,
            )
        self.pid = self._process.pid

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
        for number in (signal.SIGTERM, signal.SIGKILL):
            if self._process.poll() is None:
                with suppress(ProcessLookupError):
                    os.killpg(self.pid, number)
                self.wait(STOP_SECONDS)

    def output(self) -> str:
        """Return what it wrote."""
        return self.log.read_text(encoding="utf-8", errors="replace")


@contextmanager
def program(words: Sequence[str], log: Path) -> Generator[Program]:
    """Run a program for the length of the block."""
    running = Program(words, log)
    try:
        yield running
    finally:
        running.end()
