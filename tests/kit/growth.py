"""Requests of each client to a hostile server, and the memory that work takes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from orl_rollout.openreward import OpenRewardClient
from orl_rollout.sglang.client import SglangEngine, Timeouts

from tests.kit.episodes import config_of, task_of

PATIENCE = 0.5  # seconds, for what never ends


async def session(url: str) -> None:
    task = task_of("Echo")
    async with OpenRewardClient(config_of("Echo", url)) as client:
        await client.session(task).open(task)


async def engine(url: str) -> None:
    async with SglangEngine(url, context_tokens=32768, timeouts=Timeouts(total=PATIENCE, retry=0.01)) as asked:
        await asked.generate([1, 2, 3], {"max_new_tokens": 4096}, key="a")


def resident(field: str) -> float:
    """A field of this process's memory, in megabytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field)) / 1024


def growth_of(work: Callable[[], object]) -> float:
    """By how many megabytes the peak of this process's memory is above its start."""
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
    start = resident("VmRSS:")
    work()
    return resident("VmHWM:") - start
