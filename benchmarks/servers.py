"""Servers in processes of their own: a module here that serves reads its settings from stdin, prints its address, and
goes when stdin closes, so that none outlives the benchmark however that ends.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent


def child_environment() -> dict[str, str]:
    """The environment of a process that imports what this one does; the SDK keeps its log to itself there."""
    path = os.pathsep.join(entry for entry in sys.path if entry)
    return {**os.environ, "PYTHONPATH": path, "OPENREWARD_LOG_LEVEL": "ERROR"}


def start_server(module: str, settings: dict[str, Any]) -> subprocess.Popen[str]:
    """Start `python -m benchmarks.MODULE` with `settings`; it goes when its stdin closes."""
    process = subprocess.Popen(
        [sys.executable, "-m", f"benchmarks.{module}"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=child_environment(),
    )
    if process.stdin is None:
        raise RuntimeError("a server's pipes are missing")
    process.stdin.write(json.dumps(settings) + "\n")
    process.stdin.flush()
    return process


@contextmanager
def served(module: str, **settings: Any) -> Generator[str]:
    """The address of `python -m benchmarks.MODULE`, started with `settings` and ended with the block."""
    with start_server(module, settings) as process:
        try:
            url = process.stdout.readline().strip() if process.stdout else ""
            if not url:
                raise RuntimeError(f"benchmarks.{module} did not start")
            yield url
        finally:
            try:
                process.communicate(timeout=20)
            except subprocess.TimeoutExpired:
                process.kill()


def read_settings() -> dict[str, Any]:
    """In a server: what `served` was given."""
    many_files()
    return json.loads(sys.stdin.readline())


def announce(url: str) -> None:
    """In a server: print its address and nothing more, because a full pipe that nobody reads blocks."""
    print(url, flush=True)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())


def wait_for_the_end() -> None:
    """In a server: return when the benchmark is over."""
    sys.stdin.read()


async def until_the_end() -> None:
    """Run `wait_for_the_end` next to a running event loop."""
    await asyncio.to_thread(wait_for_the_end)


def many_files() -> None:
    """Allow this process as many connections as the machine lets it have."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
