"""The environment of the night, on the OpenReward SDK's own server, in a process that may be killed.

A task says how many calls its episode takes and what the last one pays, so that the reward of each rollout is known
before it is played. The server also answers the benchmark: which rollouts have a session, and "be busy for a while".
"""

from __future__ import annotations

import asyncio
import json
import time
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs

import uvicorn
from openreward.environments import Environment, Server, TextBlock, ToolOutput, tool

from benchmarks.servers import announce, read_settings, wait_for_the_end

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

STEP_REWARD = 0.125  # of each call but the last; exact in binary
BACKLOG = 4096
SECONDS = {"call": 0.3}


class Shift(Environment):
    """A shift of `turns` calls. Each takes a moment and pays; the last one ends the episode and pays `final`."""

    def __init__(self, task_spec: Any = None, secrets: dict[str, str] | None = None) -> None:
        super().__init__(task_spec or {}, secrets or {})
        self.done = 0

    @classmethod
    def list_splits(cls) -> list[str]:
        return ["train"]

    @classmethod
    def list_tasks(cls, split: str) -> list[dict[str, Any]]:
        return []

    def get_prompt(self) -> list[TextBlock]:
        return [TextBlock(text="Work until the shift is over.")]

    @tool
    async def step(self) -> ToolOutput:
        """Work for a moment."""
        await asyncio.sleep(SECONDS["call"])
        self.done += 1
        spec: Any = self.task_spec
        last = self.done >= spec["turns"]
        reward: float = spec["final"] if last else STEP_REWARD
        text = "The shift is over." if last else f"{self.done} done."
        return ToolOutput(blocks=[TextBlock(text=text)], reward=reward, finished=last)


class Front:
    """Answers the benchmark's own questions before the server, and 429 to openings while the server is busy."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._app: ASGIApp = server.app
        self._busy_until = 0.0
        self._refused = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path: str = scope.get("path", "")
        if scope["type"] == "http" and path.startswith("/night/"):
            await reply(send, 200, self._answer(path, scope["query_string"].decode()))
        elif path == "/create_session" and time.monotonic() < self._busy_until:
            self._refused += 1
            await reply(send, 429, {"detail": "too many sessions"})
        else:
            await self._app(scope, receive, send)

    def _answer(self, path: str, query: str) -> Any:
        """Return the sessions with the names of their rollouts, or how many openings were refused so far."""
        if path == "/night/open":
            sessions = list(self._server._active_envs.items())
            return {sid: str(one.task_spec.get("name")) for sid, one in sessions if one is not None}
        if given := parse_qs(query).get("seconds"):
            self._busy_until = time.monotonic() + float(given[0])
        return {"refused": self._refused}


async def reply(send: Send, status: int, body: Any) -> None:
    """Answer with JSON."""
    content = json.dumps(body).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(content)).encode())]
    if status == 429:
        headers.append((b"retry-after", b"1"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": content})


async def main() -> None:
    settings = read_settings()
    SECONDS["call"] = settings.get("seconds", SECONDS["call"])
    front = Front(Server([Shift]))
    port: int = settings["port"]
    config = uvicorn.Config(
        front, host="127.0.0.1", port=port, log_level="critical", backlog=BACKLOG, timeout_graceful_shutdown=1
    )
    process = uvicorn.Server(config)
    announce(f"http://127.0.0.1:{port}")
    serving = asyncio.create_task(process.serve())
    await asyncio.wait(
        {serving, asyncio.create_task(asyncio.to_thread(wait_for_the_end))}, return_when="FIRST_COMPLETED"
    )
    process.should_exit = True
    await serving


if __name__ == "__main__":
    asyncio.run(main())
