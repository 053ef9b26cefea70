"""One Gateway for each event loop: the first episode starts it, the last one ends it.

A server of its own for each of hundreds of episodes would cost ports, files and time.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from weakref import WeakKeyDictionary

from orl_gateway.api.gateway import Gateway


class _Shared:
    """The gateway of one event loop, and how many episodes use it."""

    def __init__(self) -> None:
        self.starting = asyncio.Lock()
        self.gateway: Gateway | None = None
        self.users = 0


_SHARED: WeakKeyDictionary[asyncio.AbstractEventLoop, _Shared] = WeakKeyDictionary()


@asynccontextmanager
async def shared_gateway() -> AsyncGenerator[Gateway]:
    """Open the gateway of the running event loop while an episode uses it."""
    shared = _SHARED.setdefault(asyncio.get_running_loop(), _Shared())
    async with shared.starting:
        gateway = shared.gateway = shared.gateway or await Gateway().__aenter__()
        shared.users += 1
    try:
        yield gateway
    finally:
        shared.users -= 1
        if not shared.users:
            shared.gateway = None  # who comes while it closes starts another one
            await gateway.__aexit__()
