"""Environments on the OpenReward SDK's own server, in a process of its own.

A shell that always prints the same, so that a turn has the length that the benchmark wants; and one that has more tasks
than anyone would list.
"""

from __future__ import annotations

import asyncio
from typing import Any

from openreward.environments import Environment, TextBlock, ToolOutput, tool
from orl_testing.environments import serve
from pydantic import BaseModel

from benchmarks.servers import announce, read_settings, wait_for_the_end

SETTINGS: dict[str, Any] = {"text": "", "seconds": 0.0, "tasks": 0}


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
        await asyncio.sleep(SETTINGS["seconds"])
        return ToolOutput(blocks=[TextBlock(text=SETTINGS["text"])], reward=0.01, finished=False)


class Many(Environment):
    """Lists tasks that it makes as they are asked for."""

    @classmethod
    def list_splits(cls) -> list[str]:
        return ["train"]

    @classmethod
    async def num_tasks(cls, split: str) -> int:
        return SETTINGS["tasks"]

    @classmethod
    async def get_task_range(cls, split: str, start: int | None = None, stop: int | None = None) -> list[Any]:
        return [
            {
                "question": f"Which key of chest {number} is the right one, and why?",
                "answer": number,
                "level": number % 7,
            }
            for number in range(start or 0, SETTINGS["tasks"] if stop is None else stop)
        ]

    def get_prompt(self) -> list[TextBlock]:
        return [TextBlock(text=str(self.task_spec["question"]))]

    @tool
    async def open_chest(self) -> ToolOutput:
        """Open it."""
        return ToolOutput(blocks=[TextBlock(text="empty")], reward=0.0, finished=True)


def main() -> None:
    SETTINGS.update(read_settings())
    with serve(Shell, Many) as server:
        announce(server.url)
        wait_for_the_end()


if __name__ == "__main__":
    main()
