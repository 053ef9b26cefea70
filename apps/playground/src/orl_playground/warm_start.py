"""The warm start: the tiny model learns the form of play, and very little of the skill, from scripted games.

It must not know the reinforcement learning that follows. TRL's SFTTrainer runs over transcripts that the model's own
chat template rendered, with a loss on the assistant's actions alone. A curriculum makes two ways of play known to the
model: it begins with mostly careful players and ends with mostly careless ones, so that the finished model plays
badly, yet a careful way of play is within reach of its sampling. Learning with a constant, small share of careful
players does not leave one.
"""

from __future__ import annotations

import hashlib
import json
import random
import shutil
import tempfile
import time
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orl_playground.model import build_model
from orl_playground.tokenizer import build_tokenizer, chat_template

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

    from orl_playground.guess_number import Game

# Raise it when anything that shapes the checkpoint changes: it is part of the cache's key.
RECIPE = 1
BATCH = 32


@dataclass(frozen=True, kw_only=True)
class Curriculum:
    """How long to train, at which rate, and which share of the players is careful as it goes on."""

    steps: int = 400
    learning_rate: float = 3e-3
    careful_first: float = 0.7
    careful_last: float = 0.12
    anneal_from: float = 0.6
    anneal_to: float = 0.85

    def careful(self, progress: float) -> float:
        """The share of careful players at `progress` in [0, 1]."""
        done = (progress - self.anneal_from) / (self.anneal_to - self.anneal_from)
        return self.careful_first + (self.careful_last - self.careful_first) * min(1.0, max(0.0, done))


def careful(game: Game, rng: random.Random) -> int:
    """A guess in the middle third of what remains."""
    third = (game.high - game.low) // 3
    return rng.randint(game.low + third, game.high - third)


def transcripts(curriculum: Curriculum, seed: int) -> list[list[dict[str, Any]]]:
    """Scripted games on training tasks in training order, as chat messages that end with the last action."""
    from orl_playground.guess_number import Game, tasks  # noqa: PLC0415

    rng = random.Random(seed)
    rows: list[list[dict[str, Any]]] = []
    total = curriculum.steps * BATCH
    for place in range(total):
        task = rng.choice(tasks("train"))
        game = Game(low=task.low, high=task.high, secret=task.secret)
        is_careful = rng.random() < curriculum.careful(place / total)
        messages: list[dict[str, Any]] = [{"role": "user", "content": game.prompt}]
        while not game.finished:
            number = careful(game, rng) if is_careful else rng.randint(task.low, task.high)
            messages.append(_call("guess", {"number": number}))
            messages.append({"role": "tool", "content": game.guess(number)[0]})
        rows.append(messages[:-1])
    return rows


def _call(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    call = {"type": "function", "function": {"name": name, "arguments": arguments}}
    return {"role": "assistant", "content": "", "tool_calls": [call]}


def tool_block() -> list[dict[str, Any]]:
    """The environment's tools in the form that a chat template takes."""
    from orl_playground.guess_number import GuessNumber  # noqa: PLC0415

    return [
        {
            "type": "function",
            "function": {"name": tool.name, "description": tool.description, "parameters": tool.input_schema},
        }
        for tool in GuessNumber.list_tools().tools
    ]
