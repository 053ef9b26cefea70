# pyright: reportMissingTypeStubs=false
"""One session on a server: created, kept alive, asked, deleted. It knows the protocol's requests, not their meaning.

Whatever part of the creation fails, `delete` releases what the server may hold: a session's name is known as soon as
the server has said it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any

import aiohttp

from orl_rollout.openreward.transport import Refusal, Way, request, stream, transient

PING_SECONDS = 10.0
CLOSE_PAUSES = (0.1, 0.5)  # seconds before a deletion is asked for again
LAST_WORD_SECONDS = 1.0  # for deleting a session whose teardown hangs


class Remote:
    """The requests of one session. `secrets` is the header's value that holds them."""

    def __init__(self, way: Way, secrets: str) -> None:
        self._way = way
        self._secrets = {"X-Secrets": secrets}
        self._named: dict[str, Any] = {}
        self._pings: Future[None] | None = None
        self._deleted = False

    @property
    def sid(self) -> str:
        """The session's name; empty where the server has not said it."""
        return str(self._named.get("sid") or self._named.get("task_id") or "")

    async def create(self, episode: Mapping[str, Any]) -> None:
        """Have the server make a session and in it the environment of `episode`, and keep it alive from here on."""
        http, headers = self._way.http, {**self._way.headers(""), **self._secrets}
        reply = await stream(http, "/create_session", headers, self._named, resumes=())
        if isinstance(reply, dict):
            self._named.update(reply)  # pyright: ignore[reportUnknownArgumentType]
        if not self.sid:
            raise aiohttp.ClientPayloadError("the server made a session and did not name it")
        await request(http, "POST", "/create", {**self._way.headers(self.sid), **self._secrets}, episode)
        self._ping()

    async def get(self, name: str, instead: str) -> tuple[str, Any]:
        """What the environment answers to `name`, or to `instead` where the server is too old to know it; and which."""
        try:
            return name, await self._get(name)
        except Refusal as refusal:
            if refusal.status != 404:
                raise
        return instead, await self._get(instead)

    async def run(self, name: str, body: dict[str, Any], *, repeatable: bool = False) -> Any:
        """The result of `body`, run once; a `repeatable` one changes nothing on the server."""
        way = self._way
        return await stream(way.http, way.path(name), way.headers(self.sid), body, repeatable=repeatable)

    async def delete(self, seconds: float) -> None:
        """Tear the environment down and delete the session, within `seconds`.

        Past them, and after a fault, the session is deleted without its teardown; then the fault is raised.
        """
        self._deleted = True
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
        """Deleting twice is deleting once: what was deleted already is no fault."""
        for pause in (*CLOSE_PAUSES, None):
            try:
                await request(self._way.http, "POST", name, self._way.headers(self.sid), None)
            except (Refusal, aiohttp.ClientError, OSError) as fault:
                gone = isinstance(fault, Refusal) and fault.status in {404, 410}
                busy = isinstance(fault, Refusal) and fault.status == 429
                if gone:
                    return
                if pause is None or not (busy or transient(fault)):
                    raise
            else:
                return
            await asyncio.sleep(pause)

    async def _get(self, name: str) -> Any:
        return await request(self._way.http, "GET", self._way.path(name), self._way.headers(self.sid), None)

    def _ping(self, ended: Future[None] | None = None) -> None:
        """Ping on the SDK's thread, which ends after five failures in a row: then begin again."""
        from openreward.api._session.ping import ping_thread

        if self._deleted or (ended is not None and ended.cancelled()):
            return
        way = self._way
        self._pings = ping_thread.schedule(f"{way.url}/ping", self.sid, way.key, PING_SECONDS, way.deployment)
        self._pings.add_done_callback(self._ping)
