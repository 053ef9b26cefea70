"""GuessWider: the game of GuessNumber in wider ranges, with as many guesses.

It must not know who plays it, or how a model is trained on it. Words, tool and rules are GuessNumber's, so whoever can
play the one can play the other, and the two can be mixed in one run; the ranges and the odds are its own.
It is no subclass, because OpenReward's server would answer for both from one cache of tasks.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from openreward.environments import Environment, Split, TextBlock, ToolOutput, tool

from orl_playground.guess_number import LAST_LOW, LOWEST, Game, Guess, Task, cut

if TYPE_CHECKING:
    from collections.abc import Sequence

    from openreward.environments import JSONObject

WIDTHS = (13, 14, 15)  # four guesses that halve what remains find one of fifteen


@cache
def tasks(split: str) -> tuple[Task, ...]:
    """All tasks of `train` or `test`. Raises ValueError for another split."""
    return cut(split, [(low, width) for low in range(LOWEST, LAST_LOW + 1) for width in WIDTHS])


class GuessWider(Environment):
    """Find a secret number in a stated range of thirteen to fifteen with four guesses.

    One tool, `guess(number)`. A wrong guess is answered with what remains (`higher: 26 to 34`), the hit ends the
    episode with reward 1.0, the fourth miss ends it with 0.0. Halving what remains wins every game.
    """

    def __init__(self, task_spec: JSONObject | None = None, secrets: dict[str, str] | None = None) -> None:
        super().__init__(task_spec or {}, secrets or {})
        task = Task.model_validate(self.task_spec)
        self.game = Game(low=task.low, high=task.high, secret=task.secret)

    @classmethod
    def list_splits(cls) -> Sequence[Split | str]:
        """`train` and `test`, without a triple in common."""
        return [Split(name="train", type="train"), Split(name="test", type="test")]

    @classmethod
    def list_tasks(cls, split: str) -> Sequence[JSONObject]:
        """Every task of a split, always in the same order."""
        return [task.model_dump() for task in tasks(split)]

    async def get_prompt(self) -> list[TextBlock]:
        """The stated range and the number of guesses."""
        return [TextBlock(text=self.game.prompt)]

    @tool
    async def guess(self, args: Guess) -> ToolOutput:
        """Guess the number."""
        reply, reward = self.game.guess(args.number)
        return ToolOutput(blocks=[TextBlock(text=reply)], reward=reward, finished=self.game.finished)
