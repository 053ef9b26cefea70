"""The rules of GuessNumber and GuessWider, their tasks, and scripted players, without a server or its libraries.

It must not know tokens or models. `middle` and `end` say their rule before each call, and keep to it for the whole
game. So a model that has seen both chooses between them by one token, which reinforcement learning can find.
`scattered` uses no reply: a model with skills of its own needs to learn little more than the form of a call.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

GUESSES = 4
WIDTH = 12
WIDER = (13, 14, 15)  # four guesses that halve what remains find one of fifteen
LOWEST, LAST_LOW = 1, 60
TEST_TASKS = 256
TASK_SEED = 20
MIDDLE, END = "Take the middle.", "Take an end."


@dataclass
class Task:
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
    """The state of one game: `guess` until `finished`; `low` and `high` are what remains possible."""

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


def middle(game: Game, _: Task, rng: random.Random) -> int:
    """Choose the middle of what remains, either one if there are two: wins every game."""
    return (game.low + game.high + rng.randint(0, 1)) // 2


def end(game: Game, _: Task, rng: random.Random) -> int:
    """Choose the lowest or the highest number that remains: wins one game in three."""
    return rng.choice((game.low, game.high))


def scattered(_: Game, task: Task, rng: random.Random) -> int:
    """Choose any number of the stated range, whatever the replies were: wins 29 games of a hundred."""
    return rng.randint(task.low, task.high)


def play(rule: str, choose: Callable[[Game, Task, random.Random], int], rng: random.Random) -> list[dict[str, Any]]:
    """Play a random training task. Return the chat: the prompt, then calls and replies, ending with the last call."""
    task = rng.choice(tasks("train"))
    game = Game(low=task.low, high=task.high, secret=task.secret)
    messages: list[dict[str, Any]] = [{"role": "user", "content": game.prompt}]
    while not game.finished:
        number = choose(game, task, rng)
        call = {"type": "function", "function": {"name": "guess", "arguments": {"number": number}}}
        messages.append({"role": "assistant", "content": rule, "tool_calls": [call]})
        messages.append({"role": "tool", "content": game.guess(number)[0]})
    return messages[:-1]
