"""Deadlines of single waits, of a turn and of a rollout, and the wait for a host that has put the rollout aside.

A deadline limits what is slow. It does not count the wait for a host, nor that for a server or an engine that is away:
whoever waits for one calls `postpone`. The module does not know what is awaited.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from contextvars import ContextVar
from functools import partial

from orl_core.errors import EngineError, EngineTimeout, OrlError, SessionError, SessionTimeout, boundary
from orl_core.limits import Limits

Pause = Callable[[], Awaitable[bool]]
_EXPIRY: dict[type[OrlError], type[OrlError]] = {EngineError: EngineTimeout, SessionError: SessionTimeout}
_OPEN: ContextVar[tuple[Callable[[float], None], ...]] = ContextVar("_OPEN", default=())


@contextmanager
def postponable(move: Callable[[float], None]) -> Generator[None]:
    """Let `postpone` inside the block, in this task and those it starts, call `move` with the seconds."""
    token = _OPEN.set((*_OPEN.get(), move))
    try:
        yield
    finally:
        _OPEN.reset(token)


def postpone(seconds: float) -> None:
    """Move the deadlines around the caller by `seconds`."""
    for move in _OPEN.get():
        move(seconds)


def move_timeout(timeout: asyncio.Timeout, seconds: float) -> None:
    """Move the deadline of `timeout`, unless it has passed."""
    when = timeout.when()
    if when is not None and not timeout.expired():
        timeout.reschedule(when + seconds)


@asynccontextmanager
async def within(seconds: float, error: type[OrlError], what: str, *, limit: str = "") -> AsyncGenerator[None]:
    """Open a boundary with a deadline: foreign exceptions become `error`, expiry its subclass for that.

    `limit` names the deadline in the message, if it is not that of this wait. An outer deadline and a cancellation
    pass through unchanged.
    """
    try:
        async with asyncio.timeout(seconds) as timeout:
            with postponable(partial(move_timeout, timeout)), boundary(error, what):
                yield
    except TimeoutError as exc:
        raise _EXPIRY.get(error, error)(f"{what}: no answer within {limit or f'{seconds:g} s'}") from exc


def never() -> bool:
    """Return False: the abort flag of a host that has none."""
    return False


async def give_up() -> bool:
    """Default `pause`: the host never resumes an aborted rollout."""
    return False


class Clock:
    """Deadlines of a rollout that begins now. `whole` is that of all of it.

    `stopped` is the host's abort flag. If it is set, `pause` waits until the host resumes this rollout, and returns
    whether it does.
    """

    def __init__(self, limits: Limits, stopped: Callable[[], bool], pause: Pause) -> None:
        self.whole = asyncio.timeout(limits.rollout_timeout)
        self._turn_timeout = limits.turn_timeout
        self._stopped = stopped
        self._pause = pause
        self._started = time.monotonic()
        self._turn_ends = 0.0

    @property
    def seconds(self) -> float:
        """Return the time that the rollout has taken, waits for the host left out."""
        return time.monotonic() - self._started

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Open the deadline of the whole rollout, once."""
        with postponable(self._postpone):
            async with self.whole:
                yield

    def _postpone(self, seconds: float) -> None:
        """Move the deadlines of the rollout and of its turn by `seconds`."""
        self._turn_ends += seconds
        move_timeout(self.whole, seconds)

    def begin_turn(self) -> None:
        """Begin the deadline of a turn."""
        self._turn_ends = time.monotonic() + self._turn_timeout

    def within(self, seconds: float, error: type[OrlError], what: str) -> AbstractAsyncContextManager[None]:
        """Open the deadline of one wait, nested in that of its turn."""
        left = self._turn_ends - time.monotonic()
        if left < seconds:
            return within(max(0.0, left), error, what, limit=f"the {self._turn_timeout:g} s of its turn")
        return within(seconds, error, what)

    async def ends(self) -> bool:
        """Return whether the host's abort ends the rollout. Wait if the host resumes it later."""
        if not self._stopped():
            return False
        deadline = self.whole.when()
        if deadline is None or self.whole.expired():
            return True
        now, began = asyncio.get_running_loop().time, time.monotonic()
        left = deadline - now()
        self.whole.reschedule(None)
        resumes = await self._pause()
        waited = time.monotonic() - began
        self._started += waited
        self._turn_ends += waited
        self.whole.reschedule(now() + left)
        return not resumes
