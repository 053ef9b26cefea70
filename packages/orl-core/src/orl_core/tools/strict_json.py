"""JSON from a model, read strictly: one value from an index of a text, or NotJson.

The standard decoder accepts more than environments and journals can hold. Refused are duplicate keys, NaN, infinities
(also by overflow, `1e999`), raw control characters in strings and values nested deeper than MAX_DEPTH. Integers of any
practical size pass; lone surrogates, which no UTF-8 can carry, become U+FFFD.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any, NoReturn, cast

from orl_core.text import clean

MAX_DEPTH = 64
# What may be left of a text that ends inside a value: part of a word, a number or an escape.
_CUT = re.compile(r"\s*(?:t|tr|tru|f|fa|fal|fals|n|nu|nul|-|\.|[eE][+-]?|\\?u?[0-9a-fA-F]{0,4})")
_FIRST = frozenset('{["-0123456789tfnNI')
_SPACE = re.compile(r"[ \t\n\r]*")


class NotJson(Exception):
    """The text is no JSON value in the strict sense; the message is one line. `cut`: the text ends inside the value."""

    def __init__(self, message: str, *, cut: bool = False) -> None:
        super().__init__(message)
        self.cut = cut


def read_value(text: str, start: int) -> tuple[Any, int]:
    """Return the JSON value at `start` of `text`, leading white space skipped, and the index after it."""
    begin = skip_space(text, start)
    if text[begin : begin + 1] not in _FIRST:
        raise NotJson(f"Expecting value at character {begin - start}", cut=begin == len(text))
    try:
        value, end = _DECODER.raw_decode(text, begin)
        return _clean(value, 0), end
    except json.JSONDecodeError as exc:
        cut = exc.msg.startswith("Unterminated") or _CUT.fullmatch(text, exc.pos) is not None
        raise NotJson(f"{exc.msg.removesuffix(' at')} at character {exc.pos - start}", cut=cut) from None
    except RecursionError:
        raise NotJson(f"nested deeper than {MAX_DEPTH} levels") from None
    except ValueError:  # an integer of thousands of digits, which Python declines to convert
        raise NotJson("a number has too many digits") from None


def read_all(text: str) -> Any:
    """Return the JSON value that is the whole of `text`, white space around it aside."""
    value, end = read_value(text, 0)
    rest = skip_space(text, end)
    if rest < len(text):
        raise NotJson(f"text after the value at character {rest}")
    return value


def read_rewritten(text: str) -> Any:
    """Return the value of another notation that was rewritten as JSON."""
    try:
        return read_value(text, 0)[0]
    except NotJson as exc:
        wrong = str(exc).partition(" at character")[0]
        raise NotJson(wrong.replace("property name enclosed in double quotes", "a string as key")) from None


def skip_space(text: str, start: int) -> int:
    """Return the index of the first character from `start` on that is not JSON's white space."""
    match = _SPACE.match(text, start)
    return match.end() if match else start


def _clean(value: Any, depth: int) -> Any:
    if isinstance(value, str):
        return clean(value)
    if not isinstance(value, dict | list):
        return value
    if depth == MAX_DEPTH:
        raise NotJson(f"nested deeper than {MAX_DEPTH} levels")
    if isinstance(value, dict):
        return {key: _clean(member, depth + 1) for key, member in cast("dict[str, Any]", value).items()}
    return [_clean(member, depth + 1) for member in cast("list[Any]", value)]


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members: dict[str, Any] = {}
    for raw, value in pairs:
        key = clean(raw)
        if key in members:
            raise NotJson(f"the key {json.dumps(key)} appears twice in one object")
        members[key] = value
    return members


def _finite(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise NotJson(f"the number {digits[:40]} is out of range")
    return number


def _no_constant(name: str) -> NoReturn:
    raise NotJson(f"{name} is not a JSON value")


_DECODER = json.JSONDecoder(object_pairs_hook=_object, parse_float=_finite, parse_constant=_no_constant)
