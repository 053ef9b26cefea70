"""One piece of work for each round of the event loop.

A batch of rollouts begins at once, and an event loop runs all that is ready before it looks at anything else: a
thousand times a millisecond of work would hold up deadlines and connections. The module does not know the work.
"""

from __future__ import annotations

import asyncio
from collections import deque
from weakref import WeakKeyDictionary

# Who waits for a turn, by event loop. A loop without an entry is free.
_waiting: WeakKeyDictionary[asyncio.AbstractEventLoop, deque[asyncio.Future[None]]] = WeakKeyDictionary()


async def take_turn() -> None:
    """Wait until the event loop is free: it lets one task through in each round, in order of arrival.

    Who finds it free goes through at once, without a round in between.
    """
    running = asyncio.get_running_loop()
    if running not in _waiting:
        _waiting[running] = deque()
        running.call_soon(_let_next, running)
        return
    turn = running.create_future()
    _waiting[running].append(turn)
    await turn


def _let_next(running: asyncio.AbstractEventLoop) -> None:
    while _waiting[running]:
        turn = _waiting[running].popleft()
        if not turn.done():  # its task may have been cancelled
            turn.set_result(None)
            running.call_soon(_let_next, running)
            return
    del _waiting[running]
