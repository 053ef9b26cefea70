"""Scripted players of GuessNumber: games that a warm start imitates, as chat messages.

They must not know tokens or models. `middle` and `end` say their rule before each call, and keep to it for the whole
game. So a model that has seen both chooses between them by one token, which reinforcement learning can find.
`scattered` uses no reply: a model with skills of its own needs to learn little more than the form of a call.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

from orl_playground.guess_number import Game, GuessNumber, Task, tasks

if TYPE_CHECKING:
    from collections.abc import Callable

    Message = dict[str, Any]

MIDDLE = "Take the middle."
END = "Take an end."


def middle(game: Game, _: Task, rng: random.Random) -> int:
    """The middle of what remains, either one if there are two: wins every game."""
    return (game.low + game.high + rng.randint(0, 1)) // 2


def end(game: Game, _: Task, rng: random.Random) -> int:
    """The lowest or the highest number that remains: wins one game in three."""
    return rng.choice((game.low, game.high))


def scattered(_: Game, task: Task, rng: random.Random) -> int:
    """Any number of the stated range, whatever the replies were: wins 29 games of a hundred."""
    return rng.randint(task.low, task.high)


def play(rule: str, choose: Callable[[Game, Task, random.Random], int], rng: random.Random) -> list[Message]:
    """One game on a random training task: the prompt, then calls and replies, ending with the last call."""
    task = rng.choice(tasks("train"))
    game = Game(low=task.low, high=task.high, secret=task.secret)
    messages: list[Message] = [{"role": "user", "content": game.prompt}]
    while not game.finished:
        number = choose(game, task, rng)
        call = {"type": "function", "function": {"name": "guess", "arguments": {"number": number}}}
        messages.append({"role": "assistant", "content": rule, "tool_calls": [call]})
        messages.append({"role": "tool", "content": game.guess(number)[0]})
    return messages[:-1]


def tools() -> list[Any]:
    """The environment's tools in the form that chat templates take: JSON objects."""
    return [
        {
            "type": "function",
            "function": {"name": tool.name, "description": tool.description, "parameters": tool.input_schema},
        }
        for tool in GuessNumber.list_tools().tools
    ]
