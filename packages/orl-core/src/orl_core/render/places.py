"""Positions in a decoded text, converted to positions in its ids.

Characters do not add up over ids: several ids may encode one character, each of them U+FFFD alone. A position is
therefore found by decoding ids together. Positions are asked for in order, and each search begins at the last one, so
that every id is decoded a few times only.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_LONGEST = 4  # ids that one character may take: as many as it has bytes


class Places:
    """Finds places in `ids`, which decode to `text`."""

    def __init__(self, decode: Callable[[Sequence[int]], str], ids: Sequence[int], text: str) -> None:
        self._decode = decode
        self._ids = ids
        self._text = text
        self._character = self._id = 0  # where the next search begins

    def place(self, character: int) -> int:
        """Return how many ids say the first `character` characters, the id that says the last of them whole.

        `character` must not be smaller than it was the last time.
        """
        if character >= len(self._text):
            return len(self._ids)
        if character <= self._character:
            return self._id
        said = self._text[self._character : character]
        start, most = self._id, len(self._ids) - self._id
        high = min(1, most)
        while high < most and not self._says(start + high, said):
            high = min(2 * high, most)
        place = start + bisect_left(range(high), True, key=lambda size: self._says(start + size, said))
        self._begin(place)
        return place

    def _says(self, end: int, said: str) -> bool:
        return self._decode(self._ids[self._id : end]).startswith(said)

    def _begin(self, place: int) -> None:
        """Begin the next search at `place`, or a few ids before it, where no character is incomplete."""
        for end in range(place, max(self._id, place - _LONGEST), -1):
            said = self._decode(self._ids[self._id : end])
            if not said.endswith("\ufffd") and self._text.startswith(said, self._character):
                self._character, self._id = self._character + len(said), end
                return
