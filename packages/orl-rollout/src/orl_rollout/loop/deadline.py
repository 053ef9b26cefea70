"""A wait with an end: the boundary between us and what may fail, hang or be cancelled. It knows not what is awaited.

A deadline limits what is slow. Whoever waits for a server that is away calls `postpone`, so that no deadline counts it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from functools import partial

from orl_core.errors import EngineError, EngineTimeout, OrlError, SessionError, SessionTimeout, boundary

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
