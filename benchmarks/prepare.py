"""`prepare` on a million tasks: time, and the most memory that it ever holds.

It runs in a process of its own, whose peak the system reports, against the SDK's own server in another; most of the
time is that server's, so the CPU time of the client is next to it.
"""

from __future__ import annotations

import asyncio
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.servers import ROOT, child_environment, served

TARGET_MIB = 300


def prepare(url: str, folder: Path) -> None:
    """In the process that is measured: prepare all tasks of the server at `url`, print what it took."""
    from orl_core.config import decode_config
    from orl_rollout.openreward.platform import prepare_sdk
    from orl_rollout.tasks.prepare import prepare

    config = decode_config({"environments": {"bench/Many": {"base_url": url}}}, "benchmarks")
    prepare_sdk()
    before, started, cpu = peak(), time.monotonic(), time.process_time()
    prepared = asyncio.run(prepare(config, folder / "tasks.jsonl"))
    taken = {"seconds": time.monotonic() - started, "cpu": time.process_time() - cpu, "before": before, "peak": peak()}
    print(json.dumps({**taken, "tasks": prepared.total, "bytes": (folder / "tasks.jsonl").stat().st_size}))


def peak() -> float:
    """The most MiB that this process has held."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def run(console: Console, *, quick: bool) -> list[str]:
    """Measure and print; what went wrong."""
    tasks = 3_000 if quick else 1_000_000
    with served("environment", tasks=tasks) as url, tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "benchmarks.prepare", url, folder]
        process = subprocess.run(
            command, check=True, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=child_environment()
        )
    taken = json.loads(process.stdout)
    table = Table("", "measured", "target")
    table.add_row("tasks, MiB of tasks.jsonl", f"{taken['tasks']:,}, {taken['bytes'] / 2**20:,.0f}", "")
    table.add_row("wall, s (server included)", f"{taken['seconds']:.1f}", "")
    table.add_row("CPU of the client, s", f"{taken['cpu']:.1f}", "")
    table.add_row("CPU of the client, microseconds a task", f"{1e6 * taken['cpu'] / taken['tasks']:.0f}", "")
    table.add_row(
        "peak memory, MiB (before the first task)", f"{taken['peak']:.0f} ({taken['before']:.0f})", f"{TARGET_MIB}"
    )
    console.print(table)
    return [] if taken["tasks"] == tasks else [f"{taken['tasks']:,} tasks were written instead of {tasks:,}"]


if __name__ == "__main__":
    prepare(sys.argv[1], Path(sys.argv[2]))
