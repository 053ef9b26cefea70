"""A text whose delimiters are already found: the input of every wire format's parser.

The renderer marks control ids, `mark` finds spellings (law L4). A parser trusts marks only, and knows no tokens.
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
    """Return `text` with every spelling of a delimiter marked, the leftmost and longest first."""
    return Marked(text=text, marks=tuple(spellings(text, delimiters, 0)))


def spellings(text: str, delimiters: Collection[str], offset: int) -> Iterable[Mark]:
    """Return the marks of the delimiters that `text` spells, moved by `offset`."""
    if not delimiters:
        return
    pattern = "|".join(re.escape(delimiter) for delimiter in sorted(delimiters, key=len, reverse=True))
    for found in re.finditer(pattern, text):
        yield Mark(start=found.start() + offset, end=found.end() + offset, delimiter=found.group())
