"""An event loop whose clock jumps over every wait: a deadline of minutes takes no time, and no machine is too slow.

It waits for threads, and their work takes no time. If nothing is ready and nothing is due, it raises.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from contextvars import copy_context
from functools import cache
from typing import Any, TypeVar

T = TypeVar("T")


class _Jumping(selectors.SelectSelector):
    """Waits for threads alone: what else it is asked to wait for has passed on its clock."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.in_threads = 0

    def select(self, timeout: float | None = None) -> Any:
        ready = super().select(None if self.in_threads and timeout != 0 else 0)
        if not ready:
            if timeout is None:
                raise RuntimeError("every task waits, and nothing will ever happen")
            self.now += max(0.0, timeout)
        return ready


class ShiftedLoop(asyncio.SelectorEventLoop):
    """Runs `ahead` seconds after the real clock: a test moves it on when its threads are inside."""

    ahead = 0.0

    def time(self) -> float:
        return super().time() + self.ahead


class VirtualLoop(asyncio.SelectorEventLoop):
    """For `asyncio.Runner(loop_factory=VirtualLoop)`. `time()` begins at 0."""

    def __init__(self) -> None:
        self._jumping = _Jumping()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now

    def begin(self) -> None:
        self._jumping.now = 0.0

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> asyncio.Future[Any]:
        running = super().run_in_executor(executor, func, *args)
        self._jumping.in_threads += 1
        running.add_done_callback(self._left_thread)
        return running

    async def shutdown_default_executor(self, *timeout: Any) -> None:
        self._jumping.in_threads += 1
        await super().shutdown_default_executor(*timeout)

    def _left_thread(self, _: object) -> None:
        self._jumping.in_threads -= 1


_loop = cache(VirtualLoop)


def run(main: Coroutine[Any, Any, T]) -> T:
    """Do what `asyncio.run` does, on the loop of this process, whose clock begins anew: see `tests.kit.one_loop`."""
    loop = _loop()
    loop.begin()
    return loop.run_until_complete(loop.create_task(main, context=copy_context()))
