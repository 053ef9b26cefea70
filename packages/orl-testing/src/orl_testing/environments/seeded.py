"""An environment made from a seed: the same seed gives the same tasks, answers and rewards, in any process."""

# pyright: reportMissingTypeStubs=false, reportUntypedFunctionDecorator=false, reportUnknownMemberType=false
# pyright: reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

import random
from typing import Any, ClassVar

from openreward.environments import tool
from openreward.environments.types import TextBlock, ToolOutput
from pydantic import BaseModel

from orl_testing.environments.base import Gallery, output

WORDS = (
    "amber",
    "brass",
    "candle",
    "drawer",
    "ember",
    "fern",
    "glass",
    "hollow",
    "ivory",
    "jar",
    "key",
    "lamp",
    "moth",
)
LONGEST_NOTE = 200  # words


class Drawer(BaseModel):
    """A drawer by its number, from 0."""

    drawer: int


class _Drawers(Gallery):
    """A cabinet of drawers with notes in them, one of which also holds a coin: look, then take it."""

    sizes: ClassVar[dict[str, int]] = {"train": 64, "test": 16}
    seed: ClassVar[int] = 0

    @classmethod
    def list_tasks(cls, split: str) -> list[dict[str, Any]]:
        """Numbered tasks that name the seed, so that a task says all of itself."""
        return [{"seed": cls.seed, "split": split, "number": number} for number in range(cls.sizes[split])]

    def _draw(self, what: str) -> random.Random:
        spec = self.task_spec
        return random.Random(f"{spec['seed']} {spec['split']} {spec['number']} {what}")  # noqa: S311 - no secret

    @property
    def count(self) -> int:
        """How many drawers the cabinet has: 2 to 8."""
        return self._draw("count").randint(2, 8)

    @property
    def coin(self) -> int:
        """Index of the drawer that holds the coin."""
        return self._draw("coin").randrange(self.count)

    def get_prompt(self) -> list[TextBlock]:
        """The question."""
        return [TextBlock(text=f"One of {self.count} drawers, numbered from 0, holds a coin. Look, then take it.")]

    @tool
    async def look(self, drawer: Drawer) -> ToolOutput:
        """Open a drawer: a note, and whether the coin is there. Pays 0.1 if it is."""
        if not 0 <= drawer.drawer < self.count:
            return output(f"There is no drawer {drawer.drawer}.")
        draw = self._draw(f"note {drawer.drawer}")
        note = " ".join(draw.choices(WORDS, k=draw.randint(1, LONGEST_NOTE)))
        here = drawer.drawer == self.coin
        return output(f"{note}. {'A coin!' if here else 'No coin.'}", 0.1 if here else None)

    @tool
    async def take(self, drawer: Drawer) -> ToolOutput:
        """Take what a drawer holds: the end, with reward 1 for the coin and 0 for anything else."""
        return output("The end.", float(drawer.drawer == self.coin), finished=True)


def drawers(seed: int = 0) -> type[Gallery]:
    """The environment `Drawers` with the tasks of `seed`: 64 to train on, 16 to test."""
    return type("Drawers", (_Drawers,), {"seed": seed, "__doc__": _Drawers.__doc__})
