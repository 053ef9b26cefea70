"""A wait with an end: the boundary between us and what may fail, hang or be cancelled. It knows not what is awaited."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from orl_core.errors import OrlError, boundary


@asynccontextmanager
async def within(seconds: float, error: type[OrlError], what: str) -> AsyncGenerator[None]:
    """A boundary with a deadline: foreign exceptions and expiry become `error`.

    An outer deadline and a cancellation pass through unchanged.
    """
    try:
        async with asyncio.timeout(seconds):
            with boundary(error, what):
                yield
    except TimeoutError as exc:
        raise error(f"{what}: no answer within {seconds:g} s") from exc
