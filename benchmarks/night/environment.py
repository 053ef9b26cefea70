"""The environment of the night, on the OpenReward SDK's own server, in a process that may be killed.

A task says how many calls its episode takes and what the last one pays, so that the reward of each rollout is known
before it is played. The server also tells the benchmark which rollouts have a session.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import uvicorn
from openreward.environments import Environment, Server, TextBlock, ToolOutput, tool
from starlette.responses import JSONResponse

from benchmarks.servers import announce, read_settings, wait_for_the_end

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

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
    """Tells the benchmark the sessions that are open, with the names of their rollouts."""

    def __init__(self, server: Server) -> None:
        self._server, self._app = server, server.app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope.get("path") != "/night/open":
            await self._app(scope, receive, send)
            return
        sessions = list(self._server._active_envs.items())
        named = {sid: str(one.task_spec.get("name")) for sid, one in sessions if one is not None}
        await JSONResponse(named)(scope, receive, send)


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
