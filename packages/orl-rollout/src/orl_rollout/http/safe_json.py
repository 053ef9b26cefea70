"""JSON from a server, limited in nesting and in the number of values before it is decoded.

A megabyte of brackets becomes a hundred megabytes of objects, and Python's limit of recursion differs between versions.
The check works on the bytes, in linear time and outside of Python's own loop.
"""

from __future__ import annotations

import json
from itertools import accumulate
from typing import Any

from orl_core.nesting import MAX_DEPTH

from orl_rollout.http.client import UnsafeAnswer

MAX_VALUES = 400_000
_NO_BRACKET = bytes(set(range(256)) - set(b"[]{}"))


def decode(body: bytes | bytearray, *, values: int = MAX_VALUES) -> Any:
    """Return the JSON in `body`, None where it is empty. Bytes that are not UTF-8 become U+FFFD.

    Raises:
        UnsafeAnswer: it is nested deeper than MAX_DEPTH, or has more than `values` values.
        ValueError: it is not JSON.
    """
    if not body:
        return None
    check(body, values=values)
    text = body.decode("utf-8", "replace")
    del body  # half of the memory, where the caller has let go of it
    return json.loads(text)


def check(body: bytes | bytearray, *, values: int = MAX_VALUES) -> None:
    """Raises UnsafeAnswer: `body` is nested deeper than MAX_DEPTH, or has more than `values` values."""
    plain = bytes(body) if b"\\" not in body else body.replace(b"\\\\", b"").replace(b'\\"', b"")
    too_many = plain.count(b'"') > 4 * values  # a key and a value have two each
    bare = b"" if too_many else b"".join(plain.split(b'"')[::2])  # what stands outside of strings
    brackets = bare.translate(None, _NO_BRACKET)
    if too_many or sum(map(bare.count, (b",", b"[", b"{"))) > values or len(brackets) > 2 * values:
        raise UnsafeAnswer(f"the answer has more than {values} values")
    left = brackets
    for _ in range(MAX_DEPTH):  # each round takes away at least the innermost level of all that is well-formed
        if not left:
            return
        left = left.replace(b"[]", b"").replace(b"{}", b"")
    if left and max(accumulate(1 if bracket in b"[{" else -1 for bracket in brackets)) > MAX_DEPTH:
        raise UnsafeAnswer(f"the answer is nested deeper than {MAX_DEPTH} levels")
