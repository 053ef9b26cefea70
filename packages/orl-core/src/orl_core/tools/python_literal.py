"""Python literals from a model: one value from a place in a text, or a NotLiteral that says what is wrong.

It must not know calls or tags, and evaluates nothing. Read are strings (one prefix-less literal, single, double or
triple quoted, a line break inside allowed: LFM2's templates write it so), integers and decimal numbers with a sign,
True, False, None and their JSON spellings, lists, tuples as lists, and dicts with string keys. Refused, as in
`strict_json`: names, sets, bytes, other prefixes, arithmetic, a key twice, numbers out of range, nesting deeper than
MAX_DEPTH. Lone surrogates become U+FFFD.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

from orl_core.text import clean
from orl_core.tools.strict_json import MAX_DEPTH

_SPACE = re.compile(r"\s*+")
_NUMBER = re.compile(r"[+-]?+(?:0|[1-9][0-9]*+)(?![0-9])(\.[0-9]*+)?+([eE][+-]?+[0-9]++)?+(?![\w.])")
_WORD = re.compile(r"[A-Za-z]\w*+")
_WORDS = {"True": True, "False": False, "None": None, "true": True, "false": False, "null": None}
_STRINGS = {
    '"""': re.compile(r'"""((?:[^"\\]++|\\.|"(?!""))*+)"""', re.DOTALL),
    "'''": re.compile(r"'''((?:[^'\\]++|\\.|'(?!''))*+)'''", re.DOTALL),
    '"': re.compile(r'"((?:[^"\\]++|\\.)*+)"', re.DOTALL),
    "'": re.compile(r"'((?:[^'\\]++|\\.)*+)'", re.DOTALL),
}
_ESCAPE = re.compile(r"\\(?:([0-7]{1,3})|x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.))", re.DOTALL)
_ESCAPED = {
    **{"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "f": "\f", "v": "\v"},
    **{"\\": "\\", "'": "'", '"': '"', "\n": ""},
}
_CUT = re.compile(r"[\w.+-]*+")  # what may be left of a text that ends inside a value


class NotLiteral(ValueError):
    """The text is no literal that is read here; the message is one line. `cut`: the text ends inside the value."""

    def __init__(self, message: str, text: str, place: int) -> None:
        super().__init__(message)
        self.cut = _CUT.fullmatch(text, place) is not None


def after_space(text: str, place: int) -> int:
    """Return the index of the first character from `place` on that is not white space."""
    found = _SPACE.match(text, place)
    return found.end() if found else place


def read_literal(text: str, start: int, depth: int = 0) -> tuple[Any, int]:
    """Return the literal at `start` of `text`, leading white space skipped, and the index after it.

    Raises:
        NotLiteral: there is no such value.
    """
    place = after_space(text, start)
    first = text[place : place + 1]
    if first in {"'", '"'}:
        return _string(text, place, first)
    if first and first in "[({":
        if depth == MAX_DEPTH:
            raise NotLiteral(f"nested deeper than {MAX_DEPTH} levels", text, place)
        return _dict(text, place + 1, depth + 1) if first == "{" else _list(text, place + 1, depth + 1, first)
    if number := _NUMBER.match(text, place):
        return _number(text, number), number.end()
    if (word := _WORD.match(text, place)) and word.group() in _WORDS:
        return _WORDS[word.group()], word.end()
    raise NotLiteral("a value is neither a string, a number, True, False, None, a list nor a dict", text, place)


def _string(text: str, place: int, quote: str) -> tuple[str, int]:
    if text.startswith(quote * 3, place):
        quote *= 3
    found = _STRINGS[quote].match(text, place)
    if found is None:
        raise NotLiteral("a string does not end", text, len(text))
    body = found.group(1)
    value = _ESCAPE.sub(_unescaped, body) if "\\" in body else body
    return clean(value), found.end()


def _unescaped(escape: re.Match[str]) -> str:
    octal, byte, short, long, other = escape.groups()
    if other is not None:
        return _ESCAPED.get(other, escape.group())
    code = int(octal, 8) if octal else int(byte or short or long, 16)
    return chr(code) if code <= 0x10FFFF else "\ufffd"


def _number(text: str, found: re.Match[str]) -> int | float:
    digits = found.group()
    if found.group(1) is None and found.group(2) is None:
        if len(digits) > 4000:
            raise NotLiteral("a number has too many digits", text, found.start())
        return int(digits)
    number = float(digits)
    if not math.isfinite(number):
        raise NotLiteral(f"the number {digits[:40]} is out of range", text, found.start())
    return number


def read_items(
    text: str, place: int, closing: str, read: Callable[[int], int], *, trailing: bool = True
) -> tuple[int, bool]:
    """Read items between commas up to `closing`; return the index after it, and whether a comma stands before it.

    `read` reads the item at an index and returns the index after it. `trailing`: a comma may stand before `closing`.

    Raises:
        NotLiteral: a comma is missing, or an item cannot be read.
    """
    place, first, comma = after_space(text, place), True, False
    while not text.startswith(closing, place) or (comma and not trailing):
        if not first and not comma:
            raise NotLiteral(f"a comma or {closing} is missing", text, place)
        place, first = after_space(text, read(place)), False
        comma = text.startswith(",", place)
        place = after_space(text, place + comma)
    return place + 1, comma


def _list(text: str, place: int, depth: int, opening: str) -> tuple[Any, int]:
    """Return the list or tuple after its bracket; a value in parentheses without a comma is that value."""
    items: list[Any] = []

    def item(place: int) -> int:
        value, end = read_literal(text, place, depth)
        items.append(value)
        return end

    end, comma = read_items(text, place, "]" if opening == "[" else ")", item)
    return (items[0] if opening == "(" and len(items) == 1 and not comma else items), end


def _dict(text: str, place: int, depth: int) -> tuple[dict[str, Any], int]:
    members: dict[str, Any] = {}

    def member(place: int) -> int:
        key, place = read_literal(text, place, depth)
        if not isinstance(key, str) or key in members:
            raise NotLiteral("a dict's keys are strings, each once", text, place)
        place = after_space(text, place)
        if not text.startswith(":", place):
            raise NotLiteral("a colon is missing in a dict", text, place)
        members[key], place = read_literal(text, place + 1, depth)
        return place

    return members, read_items(text, place, "}", member)[0]
