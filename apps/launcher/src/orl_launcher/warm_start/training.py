"""The training of a warm start: who trains, which episodes are held out, and the order of the rows."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from orl_rollout.results.outcome import Outcome

from orl_launcher.installation import entry

if TYPE_CHECKING:
    from orl_rollout.run_folder.contract import WarmStarter

HELD_OUT = 0.05  # of the episodes


def warm_starter() -> WarmStarter:
    """Return the package that trains.

    Raises:
        UsageError: none is installed.
    """
    return cast("WarmStarter", entry("orl.warm_starts").load())


def warm_start_trainer() -> str:
    """Return the name of the trainer that `warm_starter` belongs to."""
    return entry("orl.warm_starts").name


def split(outcomes: Sequence[Outcome], seed: int) -> tuple[list[Outcome], list[Outcome]]:
    """Return the episodes to train on and the held-out ones, at least one."""
    shuffled = random.Random(seed).sample(outcomes, len(outcomes))  # noqa: S311 - no secret is drawn
    held_out = max(1, round(HELD_OUT * len(shuffled)))
    return shuffled[held_out:], shuffled[:held_out]


def order_of(rows: int, total: int, seed: int) -> list[int]:
    """Return `total` places in `rows` rows: all of them, in a new order each time."""
    chance = random.Random(seed)  # noqa: S311 - no secret is drawn
    return [place for _ in range(-(-total // rows)) for place in chance.sample(range(rows), rows)][:total]
