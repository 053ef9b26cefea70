"""A text whose delimiters are already found: what every wire format's parser reads.

Whether a delimiter is an id of its own or a spelling is settled before a parser sees it (law L4): the renderer marks
the places of control ids, `mark` finds the spellings. A parser trusts marks only, and so knows nothing of tokens.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable


class Mark(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A delimiter at `text[start:end]` of the marked text."""

    start: int
    end: int
    delimiter: str


class Marked(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A text and its delimiters, in order and without overlap. Everything unmarked is plain text."""

    text: str
    marks: tuple[Mark, ...] = ()


def mark(text: str, delimiters: Collection[str]) -> Marked:
    """`text` with every spelling of a delimiter marked, the leftmost and longest first."""
    return Marked(text=text, marks=tuple(spellings(text, delimiters, 0)))


def spellings(text: str, delimiters: Collection[str], offset: int) -> Iterable[Mark]:
    """The marks of the delimiters that `text` spells, moved by `offset`."""
    if not delimiters:
        return
    pattern = "|".join(re.escape(delimiter) for delimiter in sorted(delimiters, key=len, reverse=True))
    for found in re.finditer(pattern, text):
        yield Mark(start=found.start() + offset, end=found.end() + offset, delimiter=found.group())
