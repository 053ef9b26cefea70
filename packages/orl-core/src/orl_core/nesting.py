"""Find values of plain JSON types that are nested too deep, or hold a number that not every reader can take.

Python's own recursion limit differs between versions, and between C and Python code. Input from outside is therefore
limited where it is read.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import cast

MAX_DEPTH = 100  # containers inside one another


def too_deep(value: object, most: int = MAX_DEPTH) -> bool:
    """Return whether `value` has containers nested deeper than `most`. It does not recurse."""
    level: list[object] = [value]
    for _ in range(most):
        level = [inner for one in level for inner in _members(one)]
    return any(isinstance(one, Mapping | list | tuple) for one in level)


def _members(value: object) -> Iterable[object]:
    """Return the members of a container; none of anything else."""
    if isinstance(value, Mapping):
        return cast("Mapping[object, object]", value).values()
    return cast("Iterable[object]", value) if isinstance(value, list | tuple) else ()


def non_finite(tree: object, where: str) -> str:
    """Return the path of the first number in `tree` that is not finite or exceeds 64 bits, or an empty string.

    `where` is the path of `tree`, which is not nested too deep.
    """
    if isinstance(tree, float):
        return "" if math.isfinite(tree) else where
    if isinstance(tree, int):
        return "" if -(2**63) <= tree < 2**64 else where
    if isinstance(tree, dict):
        for key, value in cast("dict[object, object]", tree).items():
            if found := non_finite(key, where) or non_finite(value, f"{where}.{key}"):
                return found
    elif isinstance(tree, list):
        for index, value in enumerate(cast("list[object]", tree)):
            if found := non_finite(value, f"{where}[{index}]"):
                return found
    return ""
