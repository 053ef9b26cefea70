"""One session on a server: created, kept alive, asked, deleted. It knows the protocol's requests, not their meaning.

Text of an answer becomes valid Unicode here: a lone surrogate becomes U+FFFD.

The session's name is kept as soon as the server sends it, so `delete` also releases a session whose creation failed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from types import MappingProxyType
from typing import Any

from orl_core.text import clean, map_strings

from orl_rollout.edge.retry import retried
from orl_rollout.openreward.pings import keep_alive
from orl_rollout.openreward.secrets_body import secrets_of
from orl_rollout.openreward.transport import FAULTS, Channel, Endpoint, Refusal, open_session, transient

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
        self._channel = Channel(endpoint.http)
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
        return name, map_strings(answer, clean)

    async def run(self, name: str, body: dict[str, Any], *, repeatable: bool = False) -> Any:
        """Run `body` once and return its result. A `repeatable` one changes nothing on the server."""
        endpoint = self._endpoint
        headers = endpoint.headers(self.sid)
        answer = await self._channel.stream(endpoint.path(name), headers, body, repeatable=repeatable)
        return map_strings(answer, clean)

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
