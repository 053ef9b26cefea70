"""The client of an engine behind HTTP: deadlines, retries, statuses. It knows no engine's fields.

Transient faults are retried with backoff and jitter for a bounded time, as an engine may restart; a refusal (400) is
not. A deadline belongs to one attempt and begins when it is sent, and those of the caller do not count the retries.
Connections have no limit, so no request waits here for another. Cancelling a request closes its connection, and the
engine, also behind a router, then aborts it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from io import BytesIO
from types import MappingProxyType
from typing import Any, Self

import aiohttp
import msgspec
from msgspec import Struct
from orl_core.config import RolloutConfig
from orl_core.errors import (
    EngineAnswerError,
    EngineError,
    EngineRefused,
    EngineTimeout,
    EngineUnavailable,
    boundary,
    cut,
)

from orl_rollout.edge.http import HttpClient, UnsafeAnswer, read, read_error
from orl_rollout.edge.retry import Waiting, backoff, retried
from orl_rollout.loop.clock import postpone
from orl_rollout.loop.token_buffer import TokenBuffer

KEEPALIVE_SECONDS = 4.0  # below the 5 s after which the servers of SGLang and vLLM close an idle connection
FIRST_PAUSE_SECONDS = 0.1  # the upper bound of the first pause between attempts; it doubles up to the longest
LONGEST_PAUSE_SECONDS = 8.0
LONGEST_MESSAGE = 300  # characters of an error, which may repeat the answer

_NOTHING: Mapping[str, Any] = MappingProxyType({})
_RETRIED = frozenset({408, 429})  # and every 5xx: vLLM answers 503 while it is paused


class Timeouts(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Timeouts of an engine, in seconds. The first three belong to one attempt and begin when it is sent.

    `connect` is for the connection alone. `read` is for the server's silence, and a generation is silent until it is
    complete. `total` is for the whole answer. Retries start at most `retry` after the first failure, and no deadline
    counts them. An engine that has never answered gets `first`: its address may be wrong.
    """

    connect: float = 10.0
    read: float = 900.0
    total: float = 1800.0
    retry: float = RolloutConfig().patience
    first: float = 10.0


_TIMEOUTS = Timeouts()


class _ErrorMessage(Struct, frozen=True, kw_only=True):
    message: str


class _Refusal(Struct, frozen=True, kw_only=True):
    error: _ErrorMessage | None = None
    message: str = ""


_REFUSAL = msgspec.json.Decoder(_Refusal)


class EngineClient:
    """The connection and the settings of a client of an engine. Used as `async with`; one object per event loop.

    Args:
        url: the address of a server or router without a path, such as `http://127.0.0.1:30000`.
        context_tokens: the server's context length in ids; `max_new_tokens` is clamped to what it leaves.
        payload: fields added to every request's body.
        timeouts: the engine's timeouts.
    """

    def __init__(
        self, url: str, *, context_tokens: int, payload: Mapping[str, Any] = _NOTHING, timeouts: Timeouts = _TIMEOUTS
    ) -> None:
        self.context_tokens = context_tokens
        self.payload = dict(payload)
        self._url = url.rstrip("/")
        self._timeouts = timeouts
        self._client: HttpClient | None = None
        self._answered = False

    def __reduce__(self) -> tuple[Any, ...]:
        """Travel to another process as a client that is not open."""
        settings = {"context_tokens": self.context_tokens, "payload": self.payload, "timeouts": self._timeouts}
        return partial(type(self), self._url, **settings), ()

    async def __aenter__(self) -> Self:
        timeouts = self._timeouts
        timeout = aiohttp.ClientTimeout(total=timeouts.total, sock_connect=timeouts.connect, sock_read=timeouts.read)
        with boundary(EngineError, "the engine's address"):  # which may hold a password: it is not named
            self._client = HttpClient(self._url, idle=KEEPALIVE_SECONDS, timeout=timeout)
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self._client is not None:
            await self._client.close()
            self._client = None

    async def ask(
        self, method: str, path: str, most: int, body: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> bytes:
        """Return the body, of at most `most` bytes, of the answer with status 200.

        Raises:
            EngineError: a refusal, or no answer in time.
        """
        return await retried(
            lambda: self._attempt(method, path, most, body, headers or {}),
            EngineUnavailable,
            waiting=Waiting(
                pauses=backoff(FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS), patience=self._patience, postpone=postpone
            ),
        )

    def _patience(self) -> float:
        """Return for how long retries may start after the first fault, in seconds."""
        return self._timeouts.retry if self._answered else min(self._timeouts.retry, self._timeouts.first)

    async def _attempt(self, method: str, path: str, most: int, body: bytes, headers: Mapping[str, str]) -> bytes:
        if self._client is None:
            raise RuntimeError("an engine's client is used inside `async with`")
        headers, url = {"Content-Type": "application/json", **headers}, self._url + path
        with boundary(EngineError, url):
            try:
                data = BytesIO(body)  # aiohttp sends it in parts, so that a long one does not hold up the event loop
                async with self._client.request(method, path, data=data, headers=headers) as response:
                    self._answered = True
                    if response.status != 200:
                        status, message = response.status, read_message(await read_error(response))
                        error = EngineUnavailable if status in _RETRIED or status >= 500 else EngineRefused
                        raise error(f"{url}: HTTP {status}: {message}")
                    return await read(response, most)
            except aiohttp.SocketTimeoutError as exc:
                raise EngineTimeout(f"{url}: silent for {self._timeouts.read:g} s") from exc
            except (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError) as exc:
                raise EngineUnavailable(f"{url}: {type(exc).__name__}: {exc}") from exc
            except TimeoutError as exc:
                raise EngineTimeout(f"{url}: no whole answer within {self._timeouts.total:g} s") from exc
            except UnsafeAnswer as exc:
                raise EngineAnswerError(f"{url}: {exc}") from exc


def fitted(sampling: Mapping[str, Any], known: frozenset[str], room: int) -> dict[str, Any]:
    """Return the parameters that are set, for at most `room` ids.

    Raises:
        EngineRefused: a parameter is not `known`, or no id is asked for.
    """
    params = {name: value for name, value in sampling.items() if value is not None}
    if unknown := sorted(params.keys() - known):
        raise EngineRefused(f"sampling parameters that the engine does not take: {', '.join(unknown)}")
    wanted = params.get("max_new_tokens", room)
    if wanted < 1 <= room:
        raise EngineRefused(f"max_new_tokens is {wanted}. Set it to at least 1")
    most = min(wanted, room)
    if "min_new_tokens" in params:
        params["min_new_tokens"] = min(params["min_new_tokens"], most)
    return {**params, "max_new_tokens": most}


def body_of(fields: Mapping[str, Any], name: str, ids: Sequence[int]) -> bytes:
    """Return the JSON of a request. The ids come last, as their TokenBuffer has encoded them already."""
    context = ids if isinstance(ids, TokenBuffer) else TokenBuffer(ids)
    with boundary(EngineError, "writing the request"):
        return b"".join((msgspec.json.encode(fields)[:-1], b',"%s":[' % name.encode(), context.json(), b"]}"))


def read_message(body: bytes) -> str:
    """Return the message in an error's body, or the body itself, on one line of at most LONGEST_MESSAGE characters."""
    text = body.decode("utf-8", "replace")
    try:
        refusal = _REFUSAL.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        refusal = _Refusal()
    message = refusal.error.message if refusal.error else refusal.message
    return cut(" ".join((message or text).split()), LONGEST_MESSAGE) or "no message"
