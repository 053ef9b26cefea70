"""The clock of the stand-in for SGLang: which requests run, for how long, and what ends them early.

It knows request ids and seconds, and neither ids nor HTTP. Time is a model, not work: a running request waits. A pause
stops its clock; an abort ends it with what was done of it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager


class Task:
    """One request that waits or runs: `aborted` once it shall end."""

    def __init__(self) -> None:
        self.aborted = False
        self._signal = asyncio.Event()

    def wake(self) -> None:
        """Let it look again at what has changed."""
        self._signal.set()

    async def changed(self) -> None:
        """Wait for the next `wake`."""
        await self._signal.wait()
        self._signal.clear()


class Scheduler:
    """The requests of one server. A request waits while the server is paused or takes new weights."""

    def __init__(self) -> None:
        self.paused = False
        self._updating = False
        self._waiting: dict[str, Task] = {}
        self._running: dict[str, Task] = {}
        self._changed = asyncio.Event()

    def __contains__(self, rid: str) -> bool:
        return rid in self._waiting or rid in self._running

    @property
    def running(self) -> int:
        """Count the requests that run."""
        return len(self._running)

    @property
    def waiting(self) -> int:
        """Count the requests that wait to run."""
        return len(self._waiting)

    async def until(self, count: int) -> None:
        """Wait until exactly `count` requests wait or run."""
        while self.running + self.waiting != count:
            await self._changed.wait()

    @asynccontextmanager
    async def slot(self, rid: str) -> AsyncGenerator[Task]:
        """A request, inside once it runs, or once it was aborted before."""
        task = self._waiting[rid] = Task()
        try:
            self._admit()
            self._notify()
            while rid in self._waiting and not task.aborted:
                await task.changed()
            yield task
        finally:
            self._waiting.pop(rid, None)
            self._running.pop(rid, None)
            self._admit()
            self._notify()

    async def work(self, task: Task, seconds: float) -> float | None:
        """Let `seconds` pass, pauses left out; None, or after an abort how many of them had passed."""
        done = 0.0
        while not task.aborted:
            while self.paused and not task.aborted:
                await task.changed()
            started = time.monotonic()
            try:
                async with asyncio.timeout(max(0.0, seconds - done) if seconds < float("inf") else None):
                    while not (task.aborted or self.paused) and done < seconds:
                        await task.changed()
            except TimeoutError:
                return None
            done += time.monotonic() - started
            if done >= seconds:
                return None
        return done

    def abort(self, rid: str | None) -> None:
        """End the requests whose id starts with `rid` (a known one), or all."""
        if rid is None or rid in self:
            for name, task in (*self._waiting.items(), *self._running.items()):
                if rid is None or name.startswith(rid):
                    task.aborted = True
                    task.wake()

    def pause(self) -> None:
        """Stop all clocks, and let nothing begin to run."""
        self.paused = True
        self._wake()

    def resume(self) -> None:
        """Go on after a pause."""
        self.paused = False
        self._wake()
        self._admit()

    @asynccontextmanager
    async def update(self) -> AsyncGenerator[None]:
        """Inside, nothing runs: what does is waited for, unless it is paused, and what comes waits."""
        self._updating = True
        try:
            while self._running and not self.paused:
                await self._changed.wait()
            yield
        finally:
            self._updating = False
            self._admit()

    def _admit(self) -> None:
        """Let those who wait run."""
        while self._waiting and not (self.paused or self._updating):
            rid = next(iter(self._waiting))
            self._running[rid] = task = self._waiting.pop(rid)
            task.wake()

    def _wake(self) -> None:
        for task in self._running.values():
            task.wake()
        self._notify()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
