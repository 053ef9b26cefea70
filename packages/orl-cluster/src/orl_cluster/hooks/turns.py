"""Turn rewards in a trainer: the return-to-go of each call as the advantage of its tokens (`turn_advantages`).

`generate` leaves the turns of a rollout in the metadata of its samples. `post_process` sees whole groups and makes the
advantages. A trainer that has a hook for them takes them from there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

from orl_core.datum import Datum
from orl_core.turns import advantages_per_token, turns_of

TURNS = "orl_turns"  # in a sample's metadata: [number of the turn, index of its last id, reward paid before it]


class TurnAdvantages(float):
    """The mean advantage of a row's tokens, for metrics; `turns` are each turn's last index and its advantage."""

    turns: tuple[tuple[int, float], ...]

    def __new__(cls, value: float, turns: Sequence[tuple[int, float]]) -> Self:
        """Make it of the mean and of the turns in order."""
        self = super().__new__(cls, value)
        self.turns = tuple(turns)
        return self

    @classmethod
    def of(cls, turns: Sequence[tuple[int, float]]) -> Self:
        """Make it of the turns."""
        return cls(sum(gained for _, gained in turns) / len(turns), turns)

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
