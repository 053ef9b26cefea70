"""One piece of work for each round of the event loop.

A batch of rollouts begins at once, and an event loop runs all that is ready before it looks at anything else: a
thousand times a millisecond of work would hold up deadlines and connections. The module does not know the work.
"""

from __future__ import annotations

import asyncio
from collections import deque
from weakref import WeakKeyDictionary


class FairQueue:
    """Lets tasks of one event loop through in order of arrival, one for each round of the loop.

    Who finds it free goes through at once, without a round in between.
    """

    def __init__(self) -> None:
        self._free = True
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def enter(self) -> None:
        """Wait for one's turn."""
        running = asyncio.get_running_loop()
        if self._free:
            self._free = False
            running.call_soon(self._next)
            return
        turn = running.create_future()
        self._waiting.append(turn)
        await turn

    def _next(self) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():  # its task may have been cancelled
                turn.set_result(None)
                asyncio.get_running_loop().call_soon(self._next)
                return
        self._free = True


_turnstiles: WeakKeyDictionary[asyncio.AbstractEventLoop, FairQueue] = WeakKeyDictionary()


def fair_queue() -> FairQueue:
    """Return the fair queue of the current event loop."""
    running = asyncio.get_running_loop()
    if running not in _turnstiles:
        _turnstiles[running] = FairQueue()
    return _turnstiles[running]
