"""Servers and programs in processes of their own, each ended by its id.

A module here that serves reads its settings from stdin, and goes when stdin closes, so that none outlives the benchmark
however that ends. It can be killed and started again at the same address.
"""

from __future__ import annotations

import json
import os
import random
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self

ROOT = Path(__file__).parent.parent
POLL = 0.02  # seconds between two looks at a process or a file
START_SECONDS = 300.0  # for a server to import its libraries on a loaded machine
PORTS = range(20_000, 32_000)  # below those that the kernel gives to clients, so that a dead server's port stays free


def child_environment() -> dict[str, str]:
    """The environment of a process that imports what this one does; the SDK keeps its log to itself there."""
    path = os.pathsep.join(entry for entry in sys.path if entry)
    return {**os.environ, "PYTHONPATH": path, "OPENREWARD_LOG_LEVEL": "ERROR"}


def start(module: str, settings: dict[str, Any]) -> subprocess.Popen[str]:
    """Start `python -m benchmarks.MODULE`, which reads `settings` from stdin."""
    command = [sys.executable, "-m", f"benchmarks.{module}"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, text=True, cwd=ROOT, env=child_environment())
    if process.stdin is not None:
        process.stdin.write(json.dumps(settings) + "\n")
        process.stdin.flush()
    return process


def until(true: Callable[[], object], seconds: float, what: str) -> None:
    """Wait until `true` holds, or raise TimeoutError after `seconds`."""
    ends = time.monotonic() + seconds
    while not true():
        if time.monotonic() > ends:
            raise TimeoutError(f"{what}: not within {seconds:g} s")
        time.sleep(POLL)


def free_port() -> int:
    """Return a port of loopback that nobody listens on and that no client is given."""
    for port in random.SystemRandom().sample(PORTS, 100):
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise RuntimeError("no port of loopback is free")


class ServerProcess:
    """`python -m benchmarks.MODULE` at an address that stays: `start`, `kill` and `start` again."""

    def __init__(self, module: str, **settings: Any) -> None:
        self._module, self._port = module, free_port()
        self._settings = {**settings, "port": self._port}
        self.url = f"http://127.0.0.1:{self._port}"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self.kill()

    def start(self) -> None:
        """Start the server, and wait until it listens."""
        self._process = start(self._module, self._settings)
        until(self._listens, START_SECONDS, f"{self._module} listens")

    def kill(self) -> None:
        """End the server by SIGKILL, as an accident does."""
        self._process.kill()
        self._process.communicate()

    def _listens(self) -> bool:
        if self._process.poll() is not None:
            raise RuntimeError(f"benchmarks.{self._module} did not start")
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self._port)) == 0


@contextmanager
def served(module: str, **settings: Any) -> Generator[str]:
    """The address of a server for the length of the block."""
    with ServerProcess(module, **settings) as server:
        yield server.url


def read_settings() -> dict[str, Any]:
    """In such a process: what it was started with."""
    many_files()
    return json.loads(sys.stdin.readline())


def many_files() -> None:
    """Allow this process as many connections as the machine lets it have."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
