"""Requests of one session to its server. Whatever may have run a tool is sent once.

The SDK repeats requests, a tool's call among them, as long as a proxy answers 200, and follows redirects with the key
in a header. Here a request is repeated in one case alone: the server says that the environment is still starting
(`503` with `X-Backend-State: starting`), so that nothing has run. A stream is begun once and, broken off after the
server has named it, taken up again by that name, which runs nothing either. A `429` is not repeated, for whoever
answers it may stand behind the tool. Deadlines are the caller's. The module knows nothing of episodes.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, suppress
from typing import Any, TypeVar
from urllib.parse import urlsplit

import aiohttp
import msgspec
from msgspec import Struct

from orl_rollout.openreward.events import EventReader

T = TypeVar("T")

SILENCE_SECONDS = 30.0  # in a stream, after which it counts as broken: servers say something every ten
LINGER_SECONDS = 0.05  # between a stream's result and its end
RESUME_PAUSES = (0.1, 0.5, 2.0)  # seconds before a broken stream is taken up again
STARTING_PAUSES = (0.5, 10.0)  # seconds, at least and at most, between two questions to a server that is starting


class Refusal(Exception):
    """The server answered with a status that is no success. `retry_after` is in seconds, where it names them."""

    def __init__(self, status: int, message: str, *, retry_after: float | None = None, starting: bool = False) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.retry_after = retry_after
        self.starting = starting


class RemoteFailure(Exception):
    """The environment's own code failed; the text is its own."""


class Way(Struct, frozen=True, kw_only=True):
    """Where an environment's sessions are, and what every request to it carries. `url` has no slash at its end.

    `key` and `variant` may be empty.
    """

    http: aiohttp.ClientSession
    url: str
    key: str
    deployment: str
    variant: str

    def path(self, name: str) -> str:
        """The path of an environment's own request."""
        return f"/{self.variant}{name}" if self.variant else name

    def headers(self, sid: str) -> dict[str, str]:
        """The headers of a request in session `sid`."""
        named = {"X-API-Key": self.key, "X-Deployment": self.deployment, "X-Session-ID": sid}
        return {"User-Agent": "orl", **{name: value for name, value in named.items() if value}}


async def request(http: aiohttp.ClientSession, method: str, path: str, headers: Mapping[str, str], body: Any) -> Any:
    """The JSON that the server answers, None where it answers nothing.

    Raises:
        Refusal: it answers with a status.
        aiohttp.ClientError: it does not answer.
    """

    async def once() -> Any:
        async with _send(http, method, path, headers, body) as response:
            moved = _moved(response)
            if not moved:
                return await _answer(response)
        async with _send(http, method, moved, headers, body) as response:
            return await _answer(response)

    return await _when_started(once)


async def stream(
    http: aiohttp.ClientSession,
    path: str,
    headers: Mapping[str, str],
    body: dict[str, Any],
    *,
    resumes: tuple[float, ...] = RESUME_PAUSES,
    repeatable: bool = False,
) -> Any:
    """The JSON that a stream of events ends in. `body` gains the name (`task_id`) that the server gives the stream.

    `resumes` are the pauses in seconds before a broken stream is taken up again; a `repeatable` one, which changes
    nothing on the server, is also begun again.

    Raises:
        Refusal, aiohttp.ClientError: as for `request`.
        RemoteFailure: the environment failed.
    """
    for pause in (*resumes, None):
        try:
            return await _when_started(lambda: _read(http, path, headers, body))
        except (Refusal, aiohttp.ClientError, OSError) as fault:
            may_go_on = repeatable or "task_id" in body
            if pause is None or not may_go_on or not transient(fault):
                raise
        await asyncio.sleep(pause)
    raise AssertionError("the last try returns or raises")


def transient(cause: BaseException | None) -> bool:
    """Whether the same may succeed a little later, or on a fresh session.

    A session that `already exists` is one whose creation was answered into a broken connection.
    """
    if isinstance(cause, Refusal | aiohttp.ClientResponseError):
        return cause.status >= 500 or cause.status in {408, 425} or "already exists" in cause.message
    return isinstance(cause, aiohttp.ClientError | OSError)


async def _when_started(ask: Callable[[], Awaitable[T]]) -> T:
    while True:
        try:
            return await ask()
        except Refusal as refusal:
            if not refusal.starting:
                raise
            least, most = STARTING_PAUSES
            pause = min(max(refusal.retry_after or 0.0, least), most)
        await asyncio.sleep(pause)


async def _read(http: aiohttp.ClientSession, path: str, headers: Mapping[str, str], body: dict[str, Any]) -> Any:
    async with _send(http, "POST", path, headers, body, silence=SILENCE_SECONDS) as response:
        moved = _moved(response)
        if not moved:
            return await _listen(response, body)
    async with _send(http, "POST", moved, headers, body, silence=SILENCE_SECONDS) as response:
        return await _listen(response, body)


async def _listen(response: aiohttp.ClientResponse, body: dict[str, Any]) -> Any:
    if response.status >= 300 or response.content_type == "application/json":
        return await _answer(response)
    reader = EventReader()
    said: list[str] = []
    async for chunk in response.content.iter_any():
        for event, data in reader.feed(chunk):
            if event == "task_id":
                body["task_id"] = data.strip()
            elif event == "error":
                raise RemoteFailure(data or "it does not say why")
            elif event in {"chunk", "end"}:
                said.append(data)
            if event == "end":
                await _finish(response)
                return _decode("".join(said))
    raise aiohttp.ClientPayloadError("the stream ended before its result")


async def _finish(response: aiohttp.ClientResponse) -> None:
    """Hear the stream's very end, where it follows at once, so that its connection can be used again."""
    with suppress(TimeoutError, aiohttp.ClientError):
        async with asyncio.timeout(LINGER_SECONDS):
            await response.content.read()


def _send(
    http: aiohttp.ClientSession,
    method: str,
    path: str,
    headers: Mapping[str, str],
    body: Any,
    *,
    silence: float | None = None,
) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=http.timeout.sock_connect, sock_read=silence)
    return http.request(method, path, headers=headers, json=body, timeout=timeout, allow_redirects=False)


def _moved(response: aiohttp.ClientResponse) -> str:
    """The path to ask instead, on the same server: so answer servers that are asked without a variant."""
    there = response.headers.get("Location", "")
    return there if response.status in {307, 308} and there.startswith("/") and not urlsplit(there).netloc else ""


async def _answer(response: aiohttp.ClientResponse) -> Any:
    text = await response.text(errors="replace")
    if response.status < 300:
        return _decode(text)
    seconds = response.headers.get("Retry-After", "").strip()
    raise Refusal(
        response.status,
        _detail(text),
        retry_after=float(seconds) if seconds.isdecimal() else None,
        starting=response.status == 503 and response.headers.get("X-Backend-State") == "starting",
    )


def _decode(text: str) -> Any:
    return json.loads(text) if text else None


class _Detail(Struct, frozen=True, kw_only=True):
    detail: str


def _detail(text: str) -> str:
    """The server's own words of a refusal."""
    try:
        return msgspec.json.decode(text.encode("utf-8", "replace"), type=_Detail).detail
    except msgspec.DecodeError:
        return text
