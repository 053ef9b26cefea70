"""Control strings of a vocabulary: found in a text, and kept out of a text from outside (law L4).

`guard` breaks every control string in a text from outside with a guard character before the template runs. Every
unbroken one is then the template's own. `encode` turns these into their ids, and the text between them, without guards,
into plain ids. A tokenizer cuts at added tokens before it merges, so the ids equal those of the joint encoding.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import pairwise

from orl_core.errors import RenderError
from orl_core.render.tokenizer import Tokenizer

GUARDS = tuple(map(chr, range(0xE000, 0xE010)))  # private-use characters: a text that holds all sixteen is refused


class Controls:
    """Every added token of a tokenizer, as strings to look for."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.ids = {text: token for text, token in tokenizer.added_tokens.items() if text}
        self.id_set = frozenset(self.ids.values())
        pattern = "|".join(map(re.escape, sorted(self.ids, key=len, reverse=True))) or r"(?!)"  # the longest first
        self._whole = re.compile(f"({pattern})")
        self._anywhere = re.compile(f"(?={pattern})")
        self._longest = max(map(len, self.ids), default=0)
        self._beginnings = frozenset(text[:length] for text in self.ids for length in range(1, len(text)))
        self._endings = frozenset(text[-length:] for text in self.ids for length in range(1, len(text)))

    def split(self, text: str) -> list[str]:
        """Split `text` at control strings: plain, control, plain, …, plain; the leftmost and longest match counts."""
        return self._whole.split(text)

    def sequence(self, text: str) -> list[str]:
        """Return the control strings in `text`, in order."""
        return self.split(text)[1::2]

    def encode(self, text: str, guard: str = "") -> list[int]:
        """Return the ids of a rendered text: unbroken control strings as ids, the rest plain, without guards."""
        pieces = self.split(text)
        plain = [unguarded(piece, guard) if guard else piece for piece in pieces[::2]]
        encoded = self._tokenizer.encode(plain)
        ids = encoded[0]
        for control, piece in zip(pieces[1::2], encoded[1:], strict=True):
            ids.append(self.ids[control])
            ids.extend(piece)
        return ids

    def guard(self, text: str, guard: str) -> str:
        """Put a guard character inside every control string of `text`, and at edges that could complete one.

        An edge is the beginning of a control string at the end of `text`, or the ending of one at its start.
        """
        places = {match.start() + 1 for match in self._anywhere.finditer(text)}
        for length in range(1, min(len(text), self._longest - 1) + 1):
            if text[-length:] in self._beginnings:
                places.add(len(text) - length + 1)
            if text[:length] in self._endings:
                places.add(0)
        if not places:
            return text
        cuts = [0, *sorted(places), len(text)]
        return guard.join(text[a:b] for a, b in pairwise(cuts))

    def blank(self, text: str, guard: str) -> str:
        """Return `text` with a letter for every control string, its edges guarded; both must render alike."""
        return self.guard(self._whole.sub("x", text), guard)


def choose_guard(texts: Iterable[str]) -> str:
    """Return a private-use character that none of `texts` holds, as it is or as JSON escapes it."""
    suspects = [text for text in texts if not text.isascii() or "\\ue00" in text]
    for guard in GUARDS:
        if not any(guard in text or _escaped(guard) in text for text in suspects):
            return guard
    raise RenderError("the messages hold all sixteen guard characters U+E000 to U+E00F: law L4 cannot be kept")


def unguarded(text: str, guard: str) -> str:
    """Return a rendered text without its guard characters; some templates write JSON that escapes them."""
    return text.replace(guard, "").replace(_escaped(guard), "")


def _escaped(guard: str) -> str:
    return f"\\u{ord(guard):04x}"
