"""Environments whose listing or whose groups are out of the ordinary."""

# pyright: reportMissingTypeStubs=false, reportUntypedFunctionDecorator=false, reportUnknownMemberType=false
# pyright: reportUnknownArgumentType=false, reportUnknownVariableType=false, reportIncompatibleMethodOverride=false

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, ClassVar

from openreward.environments import tool
from openreward.environments.types import GroupCandidate, ToolOutput

from orl_testing.environments.base import Gallery, output


class Duplicates(Gallery):
    """Lists every task twice."""

    @classmethod
    def list_tasks(cls, split: str) -> list[dict[str, Any]]:
        """Four tasks, listed twice."""
        return [{"number": number % 4} for number in range(8)]

    @tool
    async def act(self) -> ToolOutput:
        """Succeed."""
        return output("ok")


class Endless(Gallery):
    """Has more tasks than anyone would list: they are made by index."""

    @classmethod
    def list_tasks(cls, split: str) -> list[dict[str, Any]]:
        """Refuse."""
        raise NotImplementedError

    @classmethod
    async def num_tasks(cls, split: str) -> int:
        """Many."""
        return 5_000

    @classmethod
    async def get_task(cls, split: str, index: int) -> dict[str, Any]:
        """The task at `index`."""
        return {"number": index}

    @tool
    async def act(self) -> ToolOutput:
        """Succeed."""
        return output("ok")


class Compared(Gallery):
    """Compares conversations: the longer one's last words are better. `seen` holds what it was shown."""

    seen: ClassVar[list[list[GroupCandidate]]] = []

    async def score_group(self, candidates: Sequence[GroupCandidate]) -> list[float]:
        """The length of each conversation's last text, or what the task asks for instead."""
        self.seen.append(list(candidates))
        if self.task_spec["number"] == 2:
            raise RuntimeError("the judge is asleep")
        if self.task_spec["number"] == 3:
            await asyncio.sleep(5)
        return [float(len(_last_words(candidate))) for candidate in candidates]

    @tool
    async def act(self) -> ToolOutput:
        """Succeed."""
        return output("ok", 1.0, finished=True)


def _last_words(candidate: GroupCandidate) -> str:
    texts = [block.text for message in candidate.messages for block in message.blocks if block.type == "text"]
    return texts[-1]
