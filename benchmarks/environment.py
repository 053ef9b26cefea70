"""An environment on the OpenReward SDK's own server, in a process of its own.

A shell that always prints the same, so that a turn has the length that the benchmark wants.
"""

from __future__ import annotations

import asyncio
import os
from typing import Any

from openreward.environments import Environment, TextBlock, ToolOutput, tool
from orl_testing.environments import serve
from pydantic import BaseModel

from benchmarks.servers import announce, read_settings, wait_for_the_end

SETTINGS: dict[str, Any] = {"text": "", "seconds": 0.0, "port": 0, "calls": 0}


class Command(BaseModel):
    """A command to run."""

    command: str


class Shell(Environment):
    """Prints the same at every command, after a while."""

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
        return ToolOutput(blocks=[TextBlock(text=SETTINGS["text"])], reward=0.01, finished=False)


def main() -> None:
    SETTINGS.update(read_settings())
    if SETTINGS["calls"]:  # a file that counts them
        SETTINGS["calls"] = os.open(SETTINGS["calls"], os.O_WRONLY | os.O_APPEND)
    with serve(Shell, port=SETTINGS["port"]) as server:
        announce(server.url)
        wait_for_the_end()


if __name__ == "__main__":
    main()
