"""Two games, GuessNumber and GuessWider: find a secret number with four guesses, each answered "higher" or "lower".

It must not know who plays. `Game` holds the rules without a server, for scripted players and baselines. The range
shifts from task to task and is in the prompt, so a player needs the skill (halve the range), not a memory. The two
games have the same words and tool, so one run can mix them.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from openreward.environments import Environment, Split, TextBlock, ToolOutput, tool
from pydantic import BaseModel, Field

if TYPE_CHECKING:
    from collections.abc import Sequence

    from openreward.environments import JSONObject

GUESSES = 4
WIDTH = 12
WIDER = (13, 14, 15)  # four guesses that halve what remains find one of fifteen
LOWEST, LAST_LOW = 1, 60
TEST_TASKS = 256
TASK_SEED = 20


class Task(BaseModel):
    """One task: the range that the prompt states, both ends included, and the number to find in it."""

    low: int
    high: int
    secret: int


@cache
def tasks(split: str, widths: tuple[int, ...] = (WIDTH,)) -> tuple[Task, ...]:
    """Return the tasks of `train` or `test` in ranges of these widths.

    One fixed shuffle of every number in every range, cut once, so none is in both. Raises ValueError for another split.
    """
    if split not in ("train", "test"):
        raise ValueError(f"no split named {split!r}: train, test")
    every = [
        Task(low=low, high=low + width - 1, secret=low + offset)
        for low in range(LOWEST, LAST_LOW + 1)
        for width in widths
        for offset in range(width)
    ]
    random.Random(TASK_SEED).shuffle(every)  # noqa: S311 - games need repeatable chance
    return tuple(every[:TEST_TASKS] if split == "test" else every[TEST_TASKS:])


@dataclass
class Game:
    """The rules, without a server: `guess` until `finished`; `low` and `high` are what remains possible."""

    low: int
    high: int
    secret: int
    guesses_left: int = GUESSES
    finished: bool = False

    @property
    def prompt(self) -> str:
        """The first words to the player."""
        return f"Find the number I picked from {self.low} to {self.high}. Guesses left: {self.guesses_left}"

    def guess(self, number: int) -> tuple[str, float]:
        """Judge one guess: the reply and its reward, 1.0 on the hit and 0.0 otherwise."""
        self.guesses_left -= 1
        if number == self.secret:
            self.finished = True
            return "correct", 1.0
        if self.guesses_left == 0:
            self.finished = True
            return f"out of guesses: it was {self.secret}", 0.0
        if number < self.secret:
            self.low = max(self.low, number + 1)
            return f"higher: {self.low} to {self.high}", 0.0
        self.high = min(self.high, number - 1)
        return f"lower: {self.low} to {self.high}", 0.0


class Guess(BaseModel):
    """One guess."""

    number: int = Field(description="an integer in the range")


class Guessing(Environment):
    """The game on OpenReward; a subclass lists the tasks. It is not served: the SDK would share its tasks with them."""

    def __init__(self, task_spec: JSONObject | None = None, secrets: dict[str, str] | None = None) -> None:
        super().__init__(task_spec or {}, secrets or {})
        task = Task.model_validate(self.task_spec)
        self.game = Game(low=task.low, high=task.high, secret=task.secret)

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
        return [task.model_dump() for task in tasks(split)]


class GuessWider(Guessing):
    """Find a secret number in a stated range of thirteen to fifteen with four guesses.

    One tool, `guess(number)`. A wrong guess is answered with what remains (`higher: 26 to 34`), the hit ends the
    episode with reward 1.0, the fourth miss ends it with 0.0. Halving what remains wins every game.
    """

    @classmethod
    def list_tasks(cls, split: str) -> Sequence[JSONObject]:
        """Return every task of a split, always in the same order."""
        return [task.model_dump() for task in tasks(split, WIDER)]


@cache
def consistent_baseline(width: int = WIDTH, guesses: int = GUESSES) -> float:
    """The chance of a player who guesses uniformly inside what remains, exact: `width` numbers, `guesses` left."""
    if width == 0 or guesses == 0:
        return 0.0
    # A guess at place i (from 0) hits one secret, leaves i below it and width - 1 - i above it.
    after = sum(
        i * consistent_baseline(i, guesses - 1) + (width - 1 - i) * consistent_baseline(width - 1 - i, guesses - 1)
        for i in range(width)
    )
    return (width + after) / width**2
