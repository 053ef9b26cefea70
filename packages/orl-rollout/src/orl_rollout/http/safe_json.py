"""JSON from a server, limited in nesting and in the number of values before it is decoded.

A megabyte of brackets becomes a hundred megabytes of objects, and Python's limit of recursion differs between versions.
The check works on the bytes, in linear time and outside of Python's own loop.
"""

from __future__ import annotations

import json
from itertools import accumulate
from typing import Any

from orl_core.errors import cut
from orl_core.nesting import MAX_DEPTH

from orl_rollout.http.client import KEPT_BYTES, UnsafeAnswer

MAX_VALUES = 400_000
_NO_BRACKET = bytes(set(range(256)) - set(b"[]{}"))


class NotJson(ValueError):
    """The answer is not JSON. `answer` is the first part of its text."""

    def __init__(self, message: str, answer: str) -> None:
        super().__init__(message)
        self.answer = answer


def decode(body: bytes | bytearray, *, values: int = MAX_VALUES) -> Any:
    """Return the JSON in `body`, None where it is empty. Bytes that are not UTF-8 become U+FFFD.

    Raises:
        UnsafeAnswer: it is nested deeper than MAX_DEPTH, or has more than `values` values.
        NotJson: it is not JSON.
    """
    if not body:
        return None
    check(body, values=values)
    text = body.decode("utf-8", "replace")
    del body  # it is half of the memory, unless the caller still holds it
    try:
        return json.loads(text)
    except ValueError as exc:
        raise NotJson(f"the answer is not JSON: {exc}", cut(text, KEPT_BYTES)) from exc


def check(body: bytes | bytearray, *, values: int = MAX_VALUES) -> None:
    """Refuse a body that is costly to decode.

    Raises:
        UnsafeAnswer: `body` is nested deeper than MAX_DEPTH, or has more than `values` values.
    """
    plain = bytes(body) if b"\\" not in body else body.replace(b"\\\\", b"").replace(b'\\"', b"")
    too_many = plain.count(b'"') > 4 * values  # a key and a value have two each
    bare = b"" if too_many else b"".join(plain.split(b'"')[::2])  # the text outside of strings
    brackets = bare.translate(None, _NO_BRACKET)
    if too_many or sum(map(bare.count, (b",", b"[", b"{"))) > values or len(brackets) > 2 * values:
        raise UnsafeAnswer(f"the answer has more than {values} values", body)
    left = brackets
    for _ in range(MAX_DEPTH):  # each round takes away at least the innermost level of all that is well-formed
        if not left:
            return
        left = left.replace(b"[]", b"").replace(b"{}", b"")
    if left and max(accumulate(1 if bracket in b"[{" else -1 for bracket in brackets)) > MAX_DEPTH:
        raise UnsafeAnswer(f"the answer is nested deeper than {MAX_DEPTH} levels", body)
