"""Find a number that not every reader of JSON can take, in a tree of plain JSON types."""

from __future__ import annotations

import math
from typing import cast


def non_finite(tree: object, where: str) -> str:
    """Return the path of the first number in `tree` that is not finite or exceeds 64 bits, or an empty string.

    `where` is the path of `tree`.
    """
    if isinstance(tree, float):
        return "" if math.isfinite(tree) else where
    if isinstance(tree, int):
        return "" if -(2**63) <= tree < 2**64 else where
    if isinstance(tree, dict):
        for key, value in cast("dict[object, object]", tree).items():
            if path := non_finite(key, where) or non_finite(value, f"{where}.{key}"):
                return path
    elif isinstance(tree, list):
        for index, value in enumerate(cast("list[object]", tree)):
            if path := non_finite(value, f"{where}[{index}]"):
                return path
    return ""
