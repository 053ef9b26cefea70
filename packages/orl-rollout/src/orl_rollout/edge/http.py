"""HTTP to one origin: limits of answers in bytes, no redirects. Every request to a server goes through here.

A request to another origin is refused before it is sent, and no redirect is followed: a key reaches its own server and
no other (law L6). Cookies are not kept. JSON is read within the same limits. The module knows no protocol above HTTP.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from math import inf, isfinite
from typing import Any, Self

import aiohttp
from orl_core.errors import cut
from orl_core.text import clean, map_strings
from yarl import URL

from orl_rollout.edge.descriptors import none_left

CONNECT_SECONDS = 10.0
ERROR_BYTES = 1 << 16  # of an error's body; the rest of it is not read
UNIX = "unix:"  # before the path of a socket on this machine
KEPT_BYTES = 1 << 16  # of an answer that cannot be used
_SURROGATE = re.compile(rb"\\u[dD]")


class UnsafeAnswer(Exception):
    """The answer is larger than `most` bytes. It is not read, and asking again would not help.

    `answer` is the first part of its text, of which `body` had come.
    """

    def __init__(self, most: int, body: bytes | bytearray) -> None:
        super().__init__(f"the answer is larger than {most} bytes")
        self.answer = cut(body[: KEPT_BYTES + 1].decode("utf-8", "replace"), KEPT_BYTES)


class NotJson(ValueError):
    """The answer is not JSON. `answer` is the first part of its text."""

    def __init__(self, message: str, text: str) -> None:
        super().__init__(message)
        self.answer = cut(text, KEPT_BYTES)


class HttpClient:
    """Connections to the origin of `url`, used as `async with` or closed by `close`. One for each event loop.

    Args:
        url: scheme, host and port, and maybe a path that every request begins with; or UNIX and the path of a socket.
        idle: seconds for which an idle connection is kept.
        timeout: of every request that names none.

    Raises:
        ValueError: `url` is not absolute, neither http nor https, or has a login, a query or a fragment.
    """

    def __init__(self, url: str, *, idle: float = 4.0, timeout: aiohttp.ClientTimeout | None = None) -> None:
        kind = aiohttp.TCPConnector
        if url.startswith(UNIX):
            kind, url = partial(aiohttp.UnixConnector, url.removeprefix(UNIX)), "http://localhost"
        self.url = url.rstrip("/")
        self.away_at = -inf  # `time.monotonic` when its server last took no request; it has answered none since
        self._origin = _origin_of(url)
        parsed = URL(url)
        if "@" in parsed.authority or parsed.query_string or parsed.fragment:
            raise ValueError(
                f"the URL of {self._origin} has a login, a query or a fragment: write only http://HOST:PORT"
            )
        self._http = aiohttp.ClientSession(
            connector=kind(limit=0, keepalive_timeout=idle),
            timeout=timeout or aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS),
            headers={"Accept-Encoding": "identity", "User-Agent": "orl"},
            cookie_jar=aiohttp.DummyCookieJar(),
            trust_env=False,
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections."""
        await self._http.close()

    @asynccontextmanager
    async def request(
        self, method: str, target: str, *, headers: Mapping[str, str], **options: Any
    ) -> AsyncGenerator[aiohttp.ClientResponse]:
        """Send one request. `target` is a path below `url`, or a whole URL; `options` are aiohttp's.

        Raises:
            ValueError: it leads to another origin.
        """
        below = target.startswith("/")
        url = URL(f"{self.url}{target}" if below else target)
        if not below and _origin_of(target) != self._origin:
            raise ValueError(f"a request for {self._origin} leads to {url.scheme}://{url.host}: it is not sent")
        try:
            answer = await self._http.request(method, url, headers=headers, allow_redirects=False, **options)
        except aiohttp.ClientConnectionError as fault:
            if not none_left(fault):
                self.away_at = time.monotonic()
            raise
        self.away_at = -inf
        async with answer as response:
            yield response

    def moved(self, response: aiohttp.ClientResponse) -> str:
        """Return the target of a 307 or 308 on the same origin; "" for all other answers."""
        if response.status not in {307, 308}:
            return ""
        try:
            target = str(response.url.join(URL(response.headers.get("Location", ""))))
            return target if _origin_of(target) == self._origin else ""
        except ValueError:
            return ""


async def read(response: aiohttp.ClientResponse, most: int) -> bytes:
    """Return the body of `response`.

    Raises:
        UnsafeAnswer: it is larger than `most` bytes.
        aiohttp.ClientError: the connection breaks.
    """
    body = await _start_of(response, most)
    if len(body) > most:
        raise UnsafeAnswer(most, body)
    return bytes(body)


async def read_error(response: aiohttp.ClientResponse) -> bytes:
    """Return the first ERROR_BYTES of an error's body."""
    return cut(bytes(await _start_of(response, ERROR_BYTES)), ERROR_BYTES)


async def _start_of(response: aiohttp.ClientResponse, most: int) -> bytearray:
    """Return the body of `response`. Stop reading after `most` bytes."""
    body = bytearray()
    async for chunk in response.content.iter_any():
        body += chunk
        if len(body) > most:
            break
    return body


def retry_after(value: str | None) -> float | None:
    """Return a Retry-After in seconds; None for a date, or if it cannot be read."""
    try:
        seconds = float(value or "")
    except ValueError:
        return None
    return max(0.0, seconds) if isfinite(seconds) else None


def decode(body: bytes | bytearray, *, valid: bool = False) -> Any:
    """Return the JSON in `body`, None if it is empty. Bytes that are not UTF-8 become U+FFFD.

    If texts have to be `valid`, so do lone surrogates.

    Raises:
        NotJson: it is not JSON, or nested deeper than Python can read.
    """
    if not body:
        return None
    text, unsure = body.decode("utf-8", "replace"), valid and _SURROGATE.search(body)
    del body  # it is half of the memory, unless the caller still holds it
    try:
        tree = json.loads(text)
    except (ValueError, RecursionError) as exc:
        raise NotJson(f"the answer is not JSON: {exc}", text) from exc
    return map_strings(tree, clean) if unsure else tree


def _origin_of(url: str) -> URL:
    """Return the scheme, host and port of `url`."""
    parsed = URL(url)
    if parsed.scheme not in {"http", "https"} or not parsed.host:
        named = ascii(url.rpartition("@")[2])[:100]  # the part before it could be a password
        raise ValueError(f"{named} is no URL of the form http://HOST:PORT")
    return parsed.origin()
