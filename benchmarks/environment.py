"""An environment on the OpenReward SDK's own server, in a process that may be killed.

A shell that always prints the same, so that a turn has the length that the benchmark wants. A task may say how many
calls its episode takes and what the last one pays, so that the reward is known before it is played.
"""

from __future__ import annotations

import asyncio
import os
import sys
from typing import TYPE_CHECKING, Any

from openreward.environments import Environment, TextBlock, ToolOutput, tool
from orl_testing.environments import Served, serve
from pydantic import BaseModel
from starlette.responses import JSONResponse

from benchmarks.servers import read_settings

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

SETTINGS: dict[str, Any] = {"text": "", "seconds": 0.0, "port": 0, "calls": 0, "pay": 0.01}


class Command(BaseModel):
    """A command to run."""

    command: str


class Shell(Environment):
    """Prints the same at every command, after a while."""

    called = 0

    @classmethod
    def list_splits(cls) -> list[str]:
        return ["train"]

    @classmethod
    def list_tasks(cls, split: str) -> list[dict[str, int]]:
        return [{"number": number} for number in range(8)]

    def get_prompt(self) -> list[TextBlock]:
        return [TextBlock(text="Find out why the tests of this repository fail, and repair it.")]

    @tool
    async def run(self, command: Command) -> ToolOutput:
        """Run a command and read what it prints."""
        if SETTINGS["calls"]:
            os.write(SETTINGS["calls"], b".")
        await asyncio.sleep(SETTINGS["seconds"])
        self.called += 1
        spec: Any = self.task_spec
        last = self.called == spec.get("turns")
        reward = spec["final"] if last else SETTINGS["pay"]
        return ToolOutput(blocks=[TextBlock(text=SETTINGS["text"])], reward=reward, finished=last)


def main() -> None:
    SETTINGS.update(read_settings())
    if SETTINGS["calls"]:  # a file that counts them
        SETTINGS["calls"] = os.open(SETTINGS["calls"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    servers: list[Served] = []

    def front(app: ASGIApp) -> ASGIApp:
        """Tell the benchmark, too, how many sessions are open."""

        async def answer(scope: Scope, receive: Receive, send: Send) -> None:
            asked = scope.get("path") == "/open"
            await (JSONResponse(servers[0].sessions) if asked else app)(scope, receive, send)

        return answer

    with serve(Shell, wrap=front, port=SETTINGS["port"]) as server:
        servers.append(server)
        sys.stdin.read()


if __name__ == "__main__":
    main()
