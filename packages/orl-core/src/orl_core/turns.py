"""Turns of a rollout's rows: which ids they end at, what was paid before them, and their advantages on each id.

It is pure, and knows no trainer: adapters that train single calls share it.
"""

from __future__ import annotations

from collections.abc import Sequence

from orl_core.datum import Datum


def turns_of(datums: Sequence[Datum]) -> list[list[tuple[int, int, float]]]:
    """Return the turns of each row of one rollout: number of the turn, index of its last id, reward paid before it.

    The number and the reward continue from row to row.
    """
    rows: list[list[tuple[int, int, float]]] = []
    number, paid = 0, 0.0
    for datum in datums:
        rewards, turns = dict(datum.rewards), list[tuple[int, int, float]]()
        for end in datum.ends:
            turns.append((number, end, paid))
            number, paid = number + 1, paid + rewards.get(end, 0.0)
        rows.append(turns)
    return rows


def returns_to_go(turns: Sequence[Sequence[tuple[int, int, float]]], reward: float) -> list[float]:
    """Return for each turn of one rollout's rows its `reward` without what was paid before the turn."""
    return [reward - paid for row in turns for _, _, paid in row]


def advantages_per_token(turns: Sequence[tuple[int, float]], length: int) -> list[float]:
    """Return the advantage of each of the `length` ids of a response; `turns` are last index and advantage of each."""
    spread: list[float] = []
    for end, advantage in turns:
        spread += [advantage] * (end + 1 - len(spread))
    return [*spread, *[0.0] * (length - len(spread))]
