"""A wait with an end: the boundary between us and what may fail, hang or be cancelled. It knows not what is awaited."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from orl_core.errors import EngineError, EngineTimeout, OrlError, SessionError, SessionTimeout, boundary

_EXPIRY: dict[type[OrlError], type[OrlError]] = {EngineError: EngineTimeout, SessionError: SessionTimeout}


@asynccontextmanager
async def within(seconds: float, error: type[OrlError], what: str, *, limit: str = "") -> AsyncGenerator[None]:
    """Open a boundary with a deadline: foreign exceptions become `error`, expiry its subclass for that.

    `limit` names the deadline in the message, if it is not that of this wait. An outer deadline and a cancellation
    pass through unchanged.
    """
    try:
        async with asyncio.timeout(seconds):
            with boundary(error, what):
                yield
    except TimeoutError as exc:
        raise _EXPIRY.get(error, error)(f"{what}: no answer within {limit or f'{seconds:g} s'}") from exc
