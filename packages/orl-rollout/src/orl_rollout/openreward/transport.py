"""Requests of one session to its server. A request that may have run a tool is sent once.

The SDK repeats requests, also tool calls, as long as a proxy answers 200, and follows redirects with the key in a
header. Here a request is repeated only if nothing has run: the environment is still starting (`503` with
`X-Backend-State: starting`), or this process has no descriptor left to send it. A broken stream is resumed by the name
that the server gave it, which runs nothing either. A `429` is not repeated, because it may come after the tool ran.
Deadlines are the caller's. The module knows nothing of episodes.

Each session keeps the cookies that its server sets, so that a load balancer can route it (sticky routing) and the
sessions of a run still spread over all backends.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from http import HTTPStatus
from itertools import repeat
from typing import Any, TypeVar, cast

import aiohttp
import msgspec
from msgspec import Struct

from orl_rollout.edge.descriptors import none_left
from orl_rollout.edge.http import CONNECT_SECONDS, HttpClient, UnsafeAnswer, decode, read, read_error, retry_after
from orl_rollout.edge.retry import Waiting, retried
from orl_rollout.logs import Sparing, logger_of

T = TypeVar("T")
warnings = Sparing(logger_of(__name__))

# Of an answer. JSON is decoded on the event loop. This much takes less than 0.1 s, or 0.2 s if it is all small values.
# A thread would not help: one call of a decoder holds the interpreter's lock.
ANSWER_BYTES = 1 << 22
HEARD_ANSWERS = 16  # so many times as much is read of a stream with a long text, which is cut
HEARD_BYTES = 1 << 14  # of a stream; between two such parts the event loop runs other tasks
SILENCE_SECONDS = 30.0  # after which a stream counts as broken: servers send something every ten seconds
LINGER_SECONDS = 0.05  # between a stream's result and its end
LINGER_BYTES = 1 << 12
RESUME_PAUSES = (0.1, 0.5, 2.0)  # seconds before a broken stream is resumed
STARTING_SECONDS = 0.5  # between two requests of which nothing runs, or the Retry-After that a server names
STARTING_WISH = 10.0  # the longest such Retry-After that is obeyed
PART = 1 << 14  # bytes of a string that are taken or left at once
_WHOLE = re.compile(rb'(?:[^"\\]++|\\u.{4}|\\[^u])*+', re.DOTALL)  # of a string, without half an escape
ADVICE = (
    "The server needs openreward 0.1.60 or newer, or ors-sdk 0.1.0 or newer: upgrade it, or correct `base_url` if that "
    "is the address of another server"
)
UNKNOWN_REQUEST = frozenset({404, 405, 501})


class Refusal(Exception):
    """The server answered with a status that is no success. `retry_after` is in seconds, if the server states it."""

    def __init__(self, status: int, message: str, *, retry_after: float | None = None, starting: bool = False) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.retry_after = retry_after
        self.starting = starting


FAULTS = (Refusal, aiohttp.ClientError, OSError)  # of one request


class RemoteFailure(Exception):
    """The environment's own code failed; the text is its own."""


class Endpoint(Struct, frozen=True, kw_only=True):
    """The endpoint of an environment and the headers of its requests. `key` and `variant` may be empty.

    `body_secrets` tells that the server reads secrets in the body of `/create` alone.
    """

    http: HttpClient
    key: str
    deployment: str
    variant: str
    body_secrets: bool = False

    def path(self, name: str) -> str:
        """Return the path of an environment's own request."""
        return f"/{self.variant}{name}" if self.variant else name

    def headers(self, sid: str) -> dict[str, str]:
        """Return the headers of a request in session `sid`."""
        named = {"X-API-Key": self.key, "X-Deployment": self.deployment, "X-Session-ID": sid}
        return {name: value for name, value in named.items() if value}


class Channel:
    """Requests of one session over a shared client, with cookies of its own. `valid` as in `decode`."""

    def __init__(self, http: HttpClient, *, most: int = ANSWER_BYTES, valid: bool = False) -> None:
        self._http = http
        self._most = most
        self._valid = valid
        self.cookies: dict[str, str] = {}

    async def request(self, method: str, path: str, headers: Mapping[str, str], body: Any) -> Any:
        """Return the JSON of the answer, None if it is empty."""
        return await _until_it_runs(lambda: self._ask(method, path, headers, body))

    async def stream(
        self,
        path: str,
        headers: Mapping[str, str],
        body: dict[str, Any],
        *,
        resumes: tuple[float, ...] = RESUME_PAUSES,
        repeatable: bool = False,
    ) -> Any:
        """Return the JSON at the end of a stream of events. `body` gains the stream's name, `task_id`.

        `resumes` are the pauses in seconds before a broken stream is resumed. A `repeatable` one, which changes nothing
        on the server, is also sent again.
        """
        return await retried(
            lambda: _until_it_runs(lambda: self._listen(path, headers, body)),
            FAULTS,
            lambda fault: (repeatable or "task_id" in body) and transient(fault),
            Waiting(pauses=resumes),
        )

    async def _ask(self, method: str, path: str, headers: Mapping[str, str], body: Any) -> Any:
        async with self._send(method, path, headers, body) as response:
            return await self._answer(response)

    async def _listen(self, path: str, headers: Mapping[str, str], body: dict[str, Any]) -> Any:
        async with self._send("POST", path, headers, body, silence=SILENCE_SECONDS) as response:
            if response.status >= 300 or response.content_type == "application/json":
                return await self._answer(response)
            reader, result, size = EventReader(), CutJson(self._most), 0
            async for chunk in response.content.iter_chunked(HEARD_BYTES):
                await asyncio.sleep(0)  # without it, content that has arrived is read without a pause
                size += len(chunk)
                if size > HEARD_ANSWERS * self._most or len(result.body) > self._most + (1 << 18):
                    raise UnsafeAnswer(self._most, result.body)
                for event, data in reader.feed(chunk):
                    if event == "task_id":
                        body["task_id"] = data.decode("utf-8", "replace").strip()
                    elif event == "error":
                        raise RemoteFailure(data.decode("utf-8", "replace") or "it does not say why")
                    elif event in {"chunk", "end"}:
                        result.feed(data)
                    if event == "end":
                        await _finish(response)
                        if result.is_cut:
                            text = f"{response.url}: a text is longer than {self._most} bytes, and is cut there"
                            warnings.warn(text, str(response.url))
                        return decode(result.body, valid=self._valid)
            raise aiohttp.ClientPayloadError("the stream ended before its result")

    async def _answer(self, response: aiohttp.ClientResponse) -> Any:
        if response.status < 300:
            return decode(await read(response, self._most), valid=self._valid)
        raise Refusal(
            response.status,
            refusal_words(response.status, f"{response.method} {response.url.path}", await read_error(response)),
            retry_after=retry_after(response.headers.get("Retry-After")),
            starting=response.status == 503 and response.headers.get("X-Backend-State") == "starting",
        )

    @asynccontextmanager
    async def _send(
        self, method: str, path: str, headers: Mapping[str, str], body: Any, *, silence: float | None = None
    ) -> AsyncGenerator[aiohttp.ClientResponse]:
        """Send a request, with one redirect (307, 308) on the same origin. Keep the cookies of the answers."""
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS, sock_read=silence)
        for follows in (True, False):
            cookies = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
            sent = {**headers, **({"Cookie": cookies} if cookies else {})}
            async with self._http.request(method, path, headers=sent, json=body, timeout=timeout) as response:
                self.cookies |= {name: cookie.coded_value for name, cookie in response.cookies.items()}
                target = self._http.moved(response) if follows else ""
                if not target:
                    yield response
                    return
            path = target


async def open_session(channel: Channel, headers: Mapping[str, str], named: dict[str, Any]) -> str:
    """Create a session and return its name. `named` holds it as `task_id` as soon as the server sends it."""
    reply = await channel.stream("/create_session", headers, named, resumes=())
    named_by = cast("dict[str, object]", reply) if isinstance(reply, dict) else {}
    if name := named_by.get("sid") or named_by.get("task_id"):
        named["task_id"] = str(name)
    if "task_id" not in named:
        raise aiohttp.ClientPayloadError("the server made a session and did not name it")
    return str(named["task_id"])


def transient(cause: BaseException | None) -> bool:
    """Return whether a retry may succeed, maybe on a fresh session.

    A session `already exists` if its creation was answered into a broken connection.
    """
    if isinstance(cause, Refusal | aiohttp.ClientResponseError):
        again = cause.status >= 500 and cause.status != 501  # a server without the route will not learn it
        return again or cause.status in {408, 425} or "already exists" in cause.message
    return isinstance(cause, aiohttp.ClientError | OSError)


def _until_it_runs(ask: Callable[[], Awaitable[T]]) -> Awaitable[T]:
    """Repeat `ask` until the environment has started and there is a descriptor for the request."""
    waiting = Waiting(pauses=repeat(STARTING_SECONDS), longest_wish=STARTING_WISH)
    return retried(ask, (Refusal, OSError), _ran_nothing, waiting)


def _ran_nothing(fault: Exception) -> bool:
    if none_left(fault):
        warnings.warn("all descriptors of this process are in use, and requests wait: raise `ulimit -n`", "descriptors")
        return True
    return isinstance(fault, Refusal) and fault.starting


async def _finish(response: aiohttp.ClientResponse) -> None:
    """Read the end of the stream if it follows at once. Its connection can be used again."""
    size = 0
    with suppress(TimeoutError, aiohttp.ClientError):
        async with asyncio.timeout(LINGER_SECONDS):
            while size < LINGER_BYTES and (chunk := await response.content.readany()):
                size += len(chunk)


class EventReader:
    """Parses bytes, cut anywhere, into server-sent events (SSE). It keeps only the bytes of the current event.

    Events without a name, comments and unknown fields are skipped. A result comes as JSON cut every 4,096 characters,
    maybe inside an indentation. So only one space after a field's colon is removed, as the standard says.
    """

    def __init__(self) -> None:
        self._line = bytearray()
        self._event = ""
        self._data = bytearray()

    def feed(self, chunk: bytes) -> list[tuple[str, bytearray]]:
        """Return the events (name, data) that `chunk` completes."""
        events: list[tuple[str, bytearray]] = []
        first, *rest = chunk.split(b"\n")
        self._line += first
        for piece in rest:
            line, self._line = self._line, bytearray(piece)
            if line.endswith(b"\r"):
                del line[-1]
            if line:
                self._take(line)
                continue
            if self._event:
                events.append((self._event, self._data[:-1]))
            self._event, self._data = "", bytearray()
        return events

    def _take(self, line: bytearray) -> None:
        colon = line.find(b":")
        name, start = (bytes(line[:colon]), colon + 1) if colon >= 0 else (bytes(line), len(line))
        start += line.startswith(b" ", start)
        if name == b"event":
            self._event = line[start:].decode("utf-8", "replace")
        elif name == b"data":
            self._data += memoryview(line)[start:]
            self._data += b"\n"


class _Problem(Struct, frozen=True, kw_only=True):
    loc: tuple[Any, ...] = ()
    msg: str


class _Detail(Struct, frozen=True, kw_only=True):
    detail: str | list[_Problem]


def refusal_words(status: int, request: str, body: bytes) -> str:
    """Return what a server means that answered `request` ("POST /create") with `status` and `body`.

    The routes of a session are the same in openreward from 0.1.60 on and in ors-sdk. A server without one of them is
    older, or no environment server at all.
    """
    own = _own_words(body)
    if isinstance(own, str) and (status not in UNKNOWN_REQUEST or own != HTTPStatus(status).phrase) and status != 501:
        return own
    if isinstance(own, list):
        # The values that were rejected are left out: one of them may be a secret.
        problems = "; ".join(f"{'.'.join(map(str, problem.loc))}: {problem.msg}" for problem in own)
        toolset = " A toolset needs openreward 0.1.94 or newer." if "toolset_name" in problems else ""
        return f"{request} has another form on this server ({problems}).{toolset} {ADVICE}"
    if status in UNKNOWN_REQUEST:
        return f"{request} is unknown to this server{f' ({own})' if own else ''}. {ADVICE}"
    return body.decode("utf-8", "replace")


def _own_words(body: bytes) -> str | list[_Problem] | None:
    """Return the `detail` of a refusal in JSON; None if there is none."""
    try:
        return msgspec.json.decode(body, type=_Detail).detail
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


class CutJson:
    """Collects JSON in `body`, in linear time. Its texts end with the PART that makes it longer than `most` bytes.

    The reward of a call follows its text, so an answer that is too long cannot be cut at its end. Only strings named
    `text` are cut, which a model reads: half an image is of no use.
    """

    def __init__(self, most: int) -> None:
        self.body = bytearray()
        self.is_cut = False
        self._most = most
        self._rest = b""  # half an escape
        self._begins = 0  # where in `body` the open string begins; 0 outside of strings
        self._name = b""  # of the value that comes next

    def feed(self, part: bytes | bytearray) -> None:
        """Take the next part. It may begin and end anywhere."""
        data, at = self._rest + part, 0
        while at < len(data):
            if not self._begins:
                end = data.find(b'"', at) + 1 or len(data)
                between, at = data[at:end], end
                self.body += between
                if between.strip(b'": \t\r\n'):
                    self._name = b""
                self._begins = between.endswith(b'"') and len(self.body)
                continue
            end = next(_WHOLE.finditer(data, at, at + PART)).end()
            if self._name == b"text" and len(self.body) > self._most:
                self.is_cut |= end > at
            else:
                self.body += data[at:end]
            if data[end : end + 1] == b'"':
                self._name = bytes(self.body[self._begins : self._begins + 6])
                self._begins = 0
                self.body += b'"'
                end += 1
            elif end == at:
                break
            at = end
        self._rest = data[at:]
