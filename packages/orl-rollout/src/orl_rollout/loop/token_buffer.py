"""The ids that the engine is shown in one rollout, with their JSON, which is encoded once an id (law L5).

It knows no engine and no loop. The JSON is kept in pieces of one request each: after a cut, only the pieces from the
cut on are encoded again.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import SupportsIndex, overload

import msgspec


class TokenBuffer(Sequence[int]):
    """A sequence of ids that grows by appending. A slice of it is a list.

    `encoded` counts the ids that were turned into JSON so far: as many as it holds if nothing was cut out.
    """

    def __init__(self, ids: Iterable[int] = ()) -> None:
        self._ids = list(ids)
        self._pieces: list[bytes] = []  # digits and commas, without brackets
        self._ends: list[int] = []  # how many ids the pieces up to each one hold
        self.encoded = 0

    def __len__(self) -> int:
        return len(self._ids)

    def __iter__(self) -> Iterator[int]:
        return iter(self._ids)

    @overload
    def __getitem__(self, place: SupportsIndex) -> int: ...
    @overload
    def __getitem__(self, place: slice) -> list[int]: ...
    def __getitem__(self, place: SupportsIndex | slice) -> int | list[int]:
        return self._ids[place]

    def extend(self, ids: Iterable[int]) -> None:
        """Append `ids`."""
        self._ids.extend(ids)

    def cut(self, start: int, end: int) -> None:
        """Take the ids from `start` to before `end` out; both count from the beginning."""
        del self._ids[start:end]
        kept = bisect_right(self._ends, start)
        del self._pieces[kept:], self._ends[kept:]

    def json(self) -> bytes:
        """Return the ids in decimal with commas between them: a JSON array without its brackets."""
        done = self._ends[-1] if self._ends else 0
        if len(self._ids) > done:
            self._pieces.append(msgspec.json.encode(self._ids[done:])[1:-1])
            self._ends.append(len(self._ids))
            self.encoded += len(self._ids) - done
        return b",".join(self._pieces)
