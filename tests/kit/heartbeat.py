"""Seconds that one round of an event loop takes, for tests of what may not hold it up."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

MAX_STOP = 0.1  # seconds of this thread's own work: other processes of a busy machine do not count


class Heartbeat:
    """The longest round so far, in seconds."""

    def __init__(self) -> None:
        self.longest = 0.0

    async def beat(self) -> None:
        """Measure every round until cancelled."""
        while True:
            before = time.thread_time()
            await asyncio.sleep(0)
            self.longest = max(self.longest, time.thread_time() - before)


@asynccontextmanager
async def heartbeat() -> AsyncGenerator[Heartbeat]:
    """Measure the rounds of this event loop while the block runs."""
    measured = Heartbeat()
    task = asyncio.create_task(measured.beat())
    try:
        yield measured
        await asyncio.sleep(0)  # the round that is under way
    finally:
        task.cancel()
        await asyncio.wait({task})
