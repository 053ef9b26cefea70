"""From characters to ids: how many ids it takes to say the first so many characters of a text that ids decode to.

It knows a decoder and nothing of what is said. Characters do not add up over ids (one character may be said by several,
each of them U+FFFD alone), so a place is found by decoding ids together. Places are asked for in order, and each search
begins at the last place before which nothing is left half said: finding all of them decodes every id a few times, not
once for every place.
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
        """How many ids say the first `character` characters, the id that says the last of them whole.

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
        """Begin the next search at `place`, or a few ids before it, where what has been said until there is whole."""
        for end in range(place, max(self._id, place - _LONGEST), -1):
            said = self._decode(self._ids[self._id : end])
            if not said.endswith("\ufffd") and self._text.startswith(said, self._character):
                self._character, self._id = self._character + len(said), end
                return
