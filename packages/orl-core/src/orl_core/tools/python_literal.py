"""Python literals from a model: one value from a place in a text, or a NotJson that says what is wrong.

It must not know calls or tags. A literal is rewritten as JSON, token by token, and `strict_json` reads it: so a key
twice, a number out of range and deep nesting are refused there. Read are strings (single, double or triple quoted, a
line break inside allowed: LFM2's templates write it so), integers and decimal numbers with a sign, True, False, None
and their JSON spellings, lists, tuples as lists, and dicts with string keys. Refused are names, sets, prefixes of
strings and arithmetic. Python evaluates nothing but single strings, whose escapes are made valid before.
"""

from __future__ import annotations

import ast
import json
import re
from typing import Any

from orl_core.tools.strict_json import NotJson, read_rewritten, skip_space

_TOKEN = re.compile(
    r"""\s*+(?:(?P<string>(?P<quote>(?>'{3}|"{3}|['"]))(?P<body>(?:\\.|(?!(?P=quote))[^\\])*+)(?P=quote))"""
    r"|(?P<number>[+-]?+(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?+(?:[eE][+-]?+[0-9]++)?+(?![\w.]))"
    r"|(?P<word>[A-Za-z]\w*+)|(?P<mark>[\[\](){},:]))",
    re.DOTALL,
)
_WORDS = {"True": "true", "False": "false", "None": "null", "true": "true", "false": "false", "null": "null"}
# An escape that Python knows, or a character that needs one.
_ESCAPE = re.compile(
    r"\\(?:[0-3]?[0-7]{1,2}|x[\da-fA-F]{2}|u[\da-fA-F]{4}|U00(?:0[\da-fA-F]|10)[\da-fA-F]{4}|[abfnrtv\\'\"\n])|[\\\n\r\0]"
)
_CUT = re.compile(r"[\w.+-]*+")  # what may be left of a text that ends inside a value
_PAIRS = {"(": ")", "[": "]", "{": "}"}


def unread(message: str, text: str, place: int) -> NotJson:
    """Return the error that nothing can be read at `place`."""
    return NotJson(message, cut=_CUT.fullmatch(text, place) is not None)


def read_literal(text: str, start: int) -> tuple[Any, int]:
    """Return the literal at `start` of `text`, leading white space skipped, and the index after it."""
    pieces: list[str] = []
    opened: list[tuple[str, int, int]] = []  # the open brackets: the closing one, and the numbers of pieces and commas
    place, commas = start, 0
    while not pieces or opened:
        match = _TOKEN.match(text, place)
        written = _written(match) if match else ""
        if match is None or not written:
            at = skip_space(text, place)
            if text[at : at + 1] in {"'", '"'}:
                raise NotJson("a string does not end", cut=True)
            raise unread("a value is not a string, a number, a list or a dict", text, at)
        place = match.end()
        if written in _PAIRS:
            opened.append((_PAIRS[written], len(pieces), commas))
        commas += written == ","
        if not opened or written not in {")", "]", "}"}:
            pieces.append("[" if written == "(" else written)
            continue
        closing, first, before = opened.pop()
        if closing != written:
            raise NotJson(f"{written} is found, but {closing} is missing")
        if pieces[-1] == "," and len(pieces) > first + 2:
            pieces.pop()
        if written == ")" and commas == before and len(pieces) > first + 1:
            pieces[first] = ""  # a value in parentheses is that value
        else:
            pieces.append("]" if written == ")" else written)
    return read_rewritten("".join(pieces)), place


def _written(token: re.Match[str]) -> str:
    """Return a token as JSON; empty if JSON has none that is alike."""
    if token["string"] is None:
        return _WORDS.get(token["word"], "") if token["word"] else (token["number"] or token["mark"]).lstrip("+")
    quote, body = token["quote"], token["body"]
    if "\\" in body or not body.isprintable():
        body = ast.literal_eval(quote + _ESCAPE.sub(_escaped, body) + quote)
    return json.dumps(body)


def _escaped(match: re.Match[str]) -> str:
    return match[0] if len(match[0]) > 1 else repr(match[0])[1:-1]
