"""An event loop on a daemon thread of its own, for a program whose main thread belongs to torch.

It does not know the coroutines. Clients that live on the loop (connections, locks) are opened and used there only.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, Self, TypeVar

from orl_rollout.edge import interrupt

T = TypeVar("T")

STOP_SECONDS = 30.0  # for the loop to cancel what still runs, and to end
JOIN_SECONDS = 0.1  # between two looks for a second signal


class LoopThread:
    """Used as a context manager. Leaving it cancels what still runs there and ends the thread in bounded time.

    A second signal abandons the thread.
    """

    def __init__(self) -> None:
        self._loop: Future[asyncio.AbstractEventLoop] = Future()
        self._thread = threading.Thread(target=self._run, name="orl-rollouts", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        loop = self._loop.result()
        loop.call_soon_threadsafe(loop.stop)
        ends = time.monotonic() + STOP_SECONDS
        while self._thread.is_alive() and time.monotonic() < ends and interrupt.count() < 2:
            self._thread.join(JOIN_SECONDS)

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Start `coroutine` on the loop. Cancelling the future cancels it there."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop.result())

    def _run(self) -> None:
        with asyncio.Runner() as runner:
            loop = runner.get_loop()
            self._loop.set_result(loop)
            loop.run_forever()
