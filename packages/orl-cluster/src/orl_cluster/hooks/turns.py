"""Turn rewards in a trainer: the return-to-go of each call as the advantage of its tokens (`turn_advantages`).

`generate` leaves the turns of a rollout in the metadata of its samples. `post_process` sees whole groups and makes the
advantages. A trainer that has a hook for them takes them from there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

from orl_core.datum import Datum
from orl_core.reward import turn_advantages
from orl_core.turns import advantages_per_token, turns_of

from orl_cluster.hooks.group_scores import rollout_of

TURNS = "orl_turns"  # in a sample's metadata: [number of the turn, index of its last id, reward paid before it]


class TurnAdvantages(float):
    """The mean advantage of a row's tokens, for metrics; `turns` are each turn's last index and its advantage."""

    turns: tuple[tuple[int, float], ...]

    def __new__(cls, value: float, turns: Sequence[tuple[int, float]]) -> Self:
        """Make it of the mean and of the turns in order."""
        self = super().__new__(cls, value)
        self.turns = tuple(turns)
        return self

    def __getnewargs__(self) -> tuple[float, tuple[tuple[int, float], ...]]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Return what a copy in another process is made of."""
        return (float(self), self.turns)

    def per_token(self, length: int) -> list[float]:
        """Return the advantage of each of the `length` ids of the response."""
        return advantages_per_token(self.turns, length)


def store_turns(samples: Sequence[Any], datums: Sequence[Datum]) -> None:
    """Leave the turns of one rollout in the metadata of its samples, one for each datum; none if it failed."""
    for sample in samples:
        sample.metadata.pop(TURNS, None)
    for sample, turns in zip(samples, turns_of(datums), strict=False):
        sample.metadata[TURNS] = turns


def advantages_of_turns(
    samples: Sequence[Any], rewards: Sequence[float], trains: Sequence[bool], *, center: bool, scale: bool
) -> list[TurnAdvantages]:
    """Return the advantages of N samples in the trainer's order; see `orl_core.reward.turn_advantages`.

    The return-to-go of a turn is the reward of the rollout without what was paid before the turn. A row that the
    trainer played itself is one turn.
    """
    turns = [sample.metadata.get(TURNS) or [(0, sample.response_length - 1, 0.0)] for sample in samples]
    keys = [(sample.group_index, rollout_of(sample)) for sample in samples]
    returns: dict[Any, list[float]] = {}
    trainable: dict[Any, bool] = {}
    for key, reward, own, trained in zip(keys, rewards, turns, trains, strict=True):
        returns.setdefault(key, []).extend(reward - paid for _, _, paid in own)
        trainable[key] = trainable.get(key, False) or trained
    advantages = turn_advantages(
        list(returns.values()), [group for group, _ in returns], list(trainable.values()), center=center, scale=scale
    )
    by_rollout = dict(zip(returns, advantages, strict=True))
    rows: list[TurnAdvantages] = []
    for key, own, trained in zip(keys, turns, trains, strict=True):
        spread = [(end, by_rollout[key][number] if trained else 0.0) for number, end, _ in own]
        rows.append(TurnAdvantages(sum(value for _, value in spread) / len(spread), spread))
    return rows
