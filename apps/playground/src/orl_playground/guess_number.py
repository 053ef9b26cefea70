"""Two games, GuessNumber and GuessWider: find a secret number with four guesses, each answered "higher" or "lower".

It must not know who plays; `game` holds the rules. The range shifts from task to task and is in the prompt, so a player
needs the skill (halve the range), not a memory. The two games have the same words and tool, so one run can mix them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from openreward.environments import Environment, JSONObject, Split, TextBlock, ToolOutput, tool
from pydantic import BaseModel, Field

from orl_playground.game import WIDER, Game, tasks


class Guess(BaseModel):
    """One guess."""

    number: int = Field(description="an integer in the range")


class Guessing(Environment):
    """The game on OpenReward; a subclass lists the tasks. It is not served: the SDK would share its tasks with them."""

    def __init__(self, task_spec: JSONObject | None = None, secrets: dict[str, str] | None = None) -> None:
        super().__init__(task_spec or {}, secrets or {})
        task: dict[str, Any] = {**self.task_spec}
        self.game = Game(low=int(task["low"]), high=int(task["high"]), secret=int(task["secret"]))

    @classmethod
    def list_splits(cls) -> Sequence[Split | str]:
        """Return `train` and `test`, without a triple in common."""
        return [Split(name="train", type="train"), Split(name="test", type="test")]

    async def get_prompt(self) -> list[TextBlock]:
        """Return the stated range and the number of guesses."""
        return [TextBlock(text=self.game.prompt)]

    @tool
    async def guess(self, args: Guess) -> ToolOutput:
        """Guess the number."""
        reply, reward = self.game.guess(args.number)
        return ToolOutput(blocks=[TextBlock(text=reply)], reward=reward, finished=self.game.finished)


class GuessNumber(Guessing):
    """Find a secret number in a stated range with four guesses.

    One tool, `guess(number)`. A wrong guess is answered with what remains (`higher: 26 to 31`), the hit ends the
    episode with reward 1.0, the fourth miss ends it with 0.0. Guessing at random within what remains wins about two
    games in three; halving it wins all of them.
    """

    @classmethod
    def list_tasks(cls, split: str) -> Sequence[JSONObject]:
        """Return every task of a split, always in the same order."""
        return [asdict(task) for task in tasks(split)]


class GuessWider(Guessing):
    """Find a secret number in a stated range of thirteen to fifteen with four guesses.

    One tool, `guess(number)`. A wrong guess is answered with what remains (`higher: 26 to 34`), the hit ends the
    episode with reward 1.0, the fourth miss ends it with 0.0. Halving what remains wins every game.
    """

    @classmethod
    def list_tasks(cls, split: str) -> Sequence[JSONObject]:
        """Return every task of a split, always in the same order."""
        return [asdict(task) for task in tasks(split, WIDER)]


def tools() -> list[Any]:
    """Return the tools of the games in the form that chat templates take: JSON objects."""
    return [
        {
            "type": "function",
            "function": {"name": tool.name, "description": tool.description, "parameters": tool.input_schema},
        }
        for tool in GuessNumber.list_tools().tools
    ]
