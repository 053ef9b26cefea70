"""One session on a server: created, kept alive, asked, deleted. It knows the protocol's requests, not their meaning.

Text of an answer is valid Unicode: a lone surrogate becomes U+FFFD. The session's name is kept as soon as the server
sends it, so `delete` also releases a session whose creation failed.

A server drops a session that is silent for minutes. Pings come from an event loop on its own thread, which a busy event
loop cannot starve. After a failed ping comes the next one: a lost session shows at its next call. A server that is away
fails the pings of all its sessions: one of them is a warning.
"""

from __future__ import annotations

import asyncio
import base64
import functools
import json
import os
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from types import MappingProxyType
from typing import Any

from orl_core.errors import SessionError, boundary

from orl_rollout.edge.http import HttpClient, NotJson, UnsafeAnswer
from orl_rollout.edge.retry import retried
from orl_rollout.logs import Sparing, logger_of
from orl_rollout.openreward.transport import FAULTS, Channel, Endpoint, Refusal, open_session, transient

PING_SECONDS = 10.0
ANSWER_SECONDS = 30.0  # for one ping
ANSWER_BYTES = 1 << 16
IDLE_SECONDS = 15.0  # above the interval between pings, so that their connections are used again
LAST_WORD_SECONDS = 1.0  # for deleting a session whose teardown hangs


class RemoteSession:
    """The requests of one session. `secrets` is the header's value that holds them.

    `overrides` are variables of the environment's container. `sid` names a session that was created before; `named` is
    told the name of one that is created.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        secrets: str = "",
        overrides: Mapping[str, str] = MappingProxyType({}),
        *,
        sid: str = "",
        named: Callable[[str], None] | None = None,
    ) -> None:
        self._endpoint = endpoint
        self._channel = Channel(endpoint.http, valid=True)
        self._secrets = {"X-Secrets": secrets}
        self._named: dict[str, Any] = {"env": dict(overrides)} if overrides else {}  # the body, then the name
        if sid:
            self._named["task_id"] = sid
        self._tell = named
        self._pings: Future[None] | None = None

    @property
    def sid(self) -> str:
        """Return the session's name; empty if the server has not sent it."""
        return str(self._named.get("task_id", ""))

    async def create(self, episode: Mapping[str, Any]) -> None:
        """Create a session with the environment of `episode`, and keep it alive from now on."""
        headers = {**self._endpoint.headers(""), **self._secrets}
        sid = await open_session(self._channel, headers, self._named)
        if self._tell is not None:
            self._tell(sid)
        headers = self._endpoint.headers(sid)
        secrets = {"secrets": secrets_of(self._secrets["X-Secrets"])} if self._endpoint.body_secrets else {}
        await self._channel.request("POST", "/create", {**headers, **self._secrets}, {**episode, **secrets})
        self._pings = keep_alive(self._endpoint.http.url, headers, self._channel.cookies)

    async def get(self, name: str, instead: str) -> tuple[str, Any]:
        """Return the request that was answered, `name` or for an old server `instead`, and the answer."""
        try:
            answer = await self._ask("GET", self._endpoint.path(name))
        except Refusal as refusal:
            if refusal.status != 404:
                raise
            name, answer = instead, await self._ask("GET", self._endpoint.path(instead))
        return name, answer

    async def run(self, name: str, body: dict[str, Any], *, repeatable: bool = False) -> Any:
        """Run `body` once and return its result. A `repeatable` one changes nothing on the server."""
        endpoint = self._endpoint
        headers = endpoint.headers(self.sid)
        return await self._channel.stream(endpoint.path(name), headers, body, repeatable=repeatable)

    async def delete(self, seconds: float) -> None:
        """Tear the environment down and delete the session, within `seconds`.

        After that time, and after a fault, the session is deleted without its teardown. Then the fault is raised.
        """
        if self._pings is not None:
            self._pings.cancel()
        if not self.sid:
            return
        torn_down = False
        try:
            async with asyncio.timeout(seconds):
                await self._delete("/delete")
                torn_down = True
                await self._delete("/delete_session")
        finally:
            if not torn_down:
                async with asyncio.timeout(LAST_WORD_SECONDS):
                    await self._delete("/delete_session")

    async def _delete(self, name: str) -> None:
        """Delete. It succeeds also if the session was deleted before."""

        def again(fault: Exception) -> bool:
            return transient(fault) or (isinstance(fault, Refusal) and fault.status == 429)

        try:
            await retried(lambda: self._ask("POST", name), FAULTS, again=again)
        except Refusal as refusal:
            if refusal.status not in {404, 410}:
                raise

    async def _ask(self, method: str, path: str) -> Any:
        return await self._channel.request(method, path, self._endpoint.headers(self.sid), None)


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
        self._warnings = Sparing(logger_of(__name__))
        threading.Thread(target=self.loop.run_forever, name="orl-pings", daemon=True).start()

    async def ping(self, url: str, headers: Mapping[str, str], cookies: dict[str, str]) -> None:
        """Ping until cancelled; the last session of a server closes its client."""
        if url not in self._clients:
            self._clients[url] = HttpClient(url, idle=IDLE_SECONDS)
        channel = Channel(self._clients[url], most=ANSWER_BYTES)
        channel.cookies = cookies
        self._users[url] += 1
        try:
            while True:
                await asyncio.sleep(PING_SECONDS)
                try:
                    with boundary(SessionError, "pinging a session"):
                        async with asyncio.timeout(ANSWER_SECONDS):
                            await channel.request("POST", "/ping", headers, None)
                except SessionError as fault:
                    cause = type(fault.__cause__).__name__  # its message could echo a secret
                    self._warnings.warn(f"a ping of a session failed: {cause}", url)
        finally:
            self._users[url] -= 1
            if not self._users[url]:
                await self._clients.pop(url).close()


@functools.cache
def _pinger_of(process: int) -> _Pinger:
    """Return the pinger of this `process`: a forked child has none of its parent's threads."""
    return _Pinger()


async def reads_secrets_in_body(channel: Channel) -> bool:
    """Return whether a server reads secrets in the body of `POST /create`, and ignores the header.

    ors-sdk and openreward before 0.1.64 do, and their OpenAPI description says so. It is not tried out: a server that
    refuses the field logs what it refused.
    """
    with suppress(Refusal, UnsafeAnswer, NotJson, KeyError, TypeError):
        description = await channel.request("GET", "/openapi.json", {}, None)
        return "secrets" in description["components"]["schemas"]["CreateSession"]["properties"]
    return False


def secrets_of(header: str) -> dict[str, str]:
    """Return the secrets of an `X-Secrets` header, those without a value left out."""
    sent: dict[str, dict[str, Any]] = json.loads(base64.b64decode(header))
    return {name: secret["value"] for name, secret in sent.items() if secret["value"]}
