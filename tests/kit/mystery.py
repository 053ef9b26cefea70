"""A game of several tools, for tests: who did it, where? The evidence is the same in every case but for the culprit."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from openreward.environments import Environment, JSONObject, Split, TextBlock, ToolOutput, tool
from pydantic import BaseModel, Field


class Suspect(StrEnum):
    """The people in the house."""

    ADA = "Ada"
    BRUNO = "Bruno"
    CLARA = "Clara"


class Asked(BaseModel):
    """Whom to ask about."""

    suspect: Suspect = Field(description="one of the people in the house")


class Accusation(BaseModel):
    """A suspect to accuse, and the room of the crime."""

    suspect: Suspect = Field(description="the culprit")
    place: str = Field(description="the room of the crime")


class Mystery(Environment):
    """Find out who did it, and where, and accuse."""

    @classmethod
    def list_splits(cls) -> Sequence[Split | str]:
        """Return both splits."""
        return [Split(name="train", type="train"), Split(name="test", type="test")]

    @classmethod
    def list_tasks(cls, split: str) -> Sequence[JSONObject]:
        """Return one task for each seed."""
        first = {"train": 0, "test": 1000}[split]
        return [{"seed": first + number} for number in range(64)]

    @property
    def culprit(self) -> Suspect:
        """The one without an alibi."""
        return [*Suspect][int(str(self.task_spec["seed"])) % len(Suspect)]

    async def get_prompt(self) -> list[TextBlock]:
        """The people."""
        return [TextBlock(text=f"A crime was committed. Suspects: {', '.join(Suspect)}. Question, then accuse: once.")]

    @tool
    async def interview(self, args: Asked) -> ToolOutput:
        """Ask a suspect for the room that they were in."""
        return ToolOutput(blocks=[TextBlock(text=f"{args.suspect}: I was in the garden.")])

    @tool
    async def check_alibi(self, args: Asked) -> ToolOutput:
        """Find out whether somebody saw a suspect in the room that the suspect names."""
        seen = "Nobody saw them." if args.suspect is self.culprit else "They were seen."
        return ToolOutput(blocks=[TextBlock(text=seen)])

    @tool(exclusive=True)
    async def accuse(self, args: Accusation) -> ToolOutput:
        """Accuse a suspect. This ends the case."""
        reward = 0.5 * (args.suspect is self.culprit) + 0.5 * (args.place == "garden")
        return ToolOutput(blocks=[TextBlock(text=f"It was {self.culprit}.")], reward=reward, finished=True)
