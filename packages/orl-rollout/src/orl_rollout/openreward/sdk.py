# pyright: reportMissingTypeStubs=false, reportPrivateUsage=false
"""The `openreward` SDK, imported once and late (2.8 s), with two of its faults corrected, and where the platform lives.

The SDK's reader of server-sent events strips all leading whitespace of every data line. A result travels as JSON cut
every 4,096 characters, so a cut inside an indentation silently eats it; `parse_events` takes the place of that reader.
Its keep-alive pings look proxies up in the environment, which sends loopback traffic to them; that is switched off.
The module knows nothing of sessions or configurations.
"""

from __future__ import annotations

import asyncio
import functools
import os
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    import aiohttp


def session_url() -> str:
    """Where the platform serves sessions: `OPENREWARD_SESSION_URL`, or a subdomain of `OPENREWARD_URL`."""
    return os.environ.get("OPENREWARD_SESSION_URL") or _subdomain("sessions")


def api_url() -> str:
    """Where the platform takes uploads: `OPENREWARD_API_URL`, or a subdomain of `OPENREWARD_URL`."""
    return os.environ.get("OPENREWARD_API_URL") or _subdomain("api")


def _subdomain(name: str) -> str:
    url = urlsplit(os.environ.get("OPENREWARD_URL") or "https://openreward.ai")
    return url._replace(netloc=f"{name}.{url.netloc}").geturl()


@functools.cache
def prepare_sdk() -> None:
    """Import the SDK and correct it. Call it on a thread: the import would hold an event loop for seconds."""
    os.environ.setdefault("OPENREWARD_DISABLE_UPDATE_CHECK", "1")
    from openreward.api._session import http, ping

    http._parse_sse_events = parse_events
    pings = ping.ping_thread
    loop = pings._ensure_started()
    client = asyncio.run_coroutine_threadsafe(pings._get_client(), loop).result()
    client._trust_env = False


class EventReader:
    """Server-sent events from bytes, cut anywhere. Of the whitespace after a field's colon, one space is removed.

    Bytes that are not UTF-8 become U+FFFD. Events without a name, comments and unknown fields are skipped.
    """

    def __init__(self) -> None:
        self._line: list[bytes] = []
        self._event = ""
        self._data: list[str] = []

    def feed(self, chunk: bytes) -> list[tuple[str, str]]:
        """The events (name, data) that `chunk` completes."""
        events: list[tuple[str, str]] = []
        first, *rest = chunk.split(b"\n")
        self._line.append(first)
        for piece in rest:
            line = b"".join(self._line).removesuffix(b"\r").decode("utf-8", "replace")
            self._line = [piece]
            if line:
                self._take(line)
                continue
            if self._event:
                events.append((self._event, "\n".join(self._data)))
            self._event, self._data = "", []
        return events

    def _take(self, line: str) -> None:
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "event":
            self._event = value
        elif name == "data":
            self._data.append(value)


async def parse_events(response: aiohttp.ClientResponse) -> AsyncGenerator[tuple[str, str]]:
    """The events of a streaming response, whitespace intact, lines of any length."""
    reader = EventReader()
    async for chunk in response.content.iter_any():
        for event in reader.feed(chunk):
            yield event
