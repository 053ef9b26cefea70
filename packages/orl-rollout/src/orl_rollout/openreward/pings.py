"""Keep-alive pings of sessions, from an event loop on its own thread, which a busy event loop cannot starve.

A server drops a session that is silent for minutes. Pings use the same client as every other request: one origin, no
redirects, bounded answers (law L6). After a failed ping comes the next one: a lost session shows at its next call. A
server that is away fails the pings of all its sessions: one of them is a warning.
"""

from __future__ import annotations

import asyncio
import functools
import os
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import Future

from orl_core.errors import SessionError, boundary

from orl_rollout.edge.http import HttpClient
from orl_rollout.logs import Sparing, logger_of
from orl_rollout.openreward.transport import Channel

logger = logger_of(__name__)

PING_SECONDS = 10.0
ANSWER_SECONDS = 30.0  # for one ping
ANSWER_BYTES = 1 << 16
IDLE_SECONDS = 15.0  # above the interval between pings, so that their connections are used again


def keep_alive(url: str, headers: Mapping[str, str], cookies: dict[str, str]) -> Future[None]:
    """Ping the session that `headers` name every PING_SECONDS, until the future is cancelled.

    `cookies` are those of the session. Each ping reads them again.
    """
    pinger = _pinger_of(os.getpid())
    return asyncio.run_coroutine_threadsafe(pinger.ping(url, headers, cookies), pinger.loop)


class _Pinger:
    """A running event loop with one client for each server that has sessions."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._clients: dict[str, HttpClient] = {}
        self._users: Counter[str] = Counter()
        self._warnings = Sparing(logger)
        threading.Thread(target=self.loop.run_forever, name="orl-pings", daemon=True).start()

    async def ping(self, url: str, headers: Mapping[str, str], cookies: dict[str, str]) -> None:
        """Ping until cancelled; the last session of a server closes its client."""
        if url not in self._clients:
            self._clients[url] = HttpClient(url, idle=IDLE_SECONDS)
        channel = Channel(self._clients[url], most=ANSWER_BYTES)
        channel.cookies = cookies
        self._users[url] += 1
        try:
            await _ping(channel, headers, functools.partial(self._warnings.warn, about=url))
        finally:
            self._users[url] -= 1
            if not self._users[url]:
                await self._clients.pop(url).close()


@functools.cache
def _pinger_of(process: int) -> _Pinger:
    """Return the pinger of this `process`: a forked child has none of its parent's threads."""
    return _Pinger()


async def _ping(channel: Channel, headers: Mapping[str, str], warn: Callable[[str], None]) -> None:
    while True:
        await asyncio.sleep(PING_SECONDS)
        try:
            with boundary(SessionError, "pinging a session"):
                async with asyncio.timeout(ANSWER_SECONDS):
                    await channel.request("POST", "/ping", headers, None)
        except SessionError as fault:
            cause = type(fault.__cause__).__name__  # its message could echo a secret
            warn(f"a ping of a session failed: {cause}")
