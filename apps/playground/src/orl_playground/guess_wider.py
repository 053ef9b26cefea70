"""GuessWider: the game of GuessNumber in wider ranges, with as many guesses.

It must not know who plays it. Words, tool and rules are GuessNumber's, so the two can be mixed in one run; the ranges
and the odds are its own.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from orl_playground.guess_number import LAST_LOW, LOWEST, Guessing, Task, cut

if TYPE_CHECKING:
    from collections.abc import Sequence

    from openreward.environments import JSONObject

WIDTHS = (13, 14, 15)  # four guesses that halve what remains find one of fifteen


@cache
def tasks(split: str) -> tuple[Task, ...]:
    """All tasks of `train` or `test`. Raises ValueError for another split."""
    return cut(split, [(low, width) for low in range(LOWEST, LAST_LOW + 1) for width in WIDTHS])


class GuessWider(Guessing):
    """Find a secret number in a stated range of thirteen to fifteen with four guesses.

    One tool, `guess(number)`. A wrong guess is answered with what remains (`higher: 26 to 34`), the hit ends the
    episode with reward 1.0, the fourth miss ends it with 0.0. Halving what remains wins every game.
    """

    @classmethod
    def list_tasks(cls, split: str) -> Sequence[JSONObject]:
        """Return every task of a split, always in the same order."""
        return [task.model_dump() for task in tasks(split)]
