"""The size of a JSON value that comes from outside, measured before anything else is done with it."""

from __future__ import annotations

import json
from typing import Any, cast

MOST_SIZE = 4 << 20  # characters of JSON
MOST_LEVELS = 64  # of nesting: at 50,000 levels jsonschema-rs ends the process


class TooLarge(ValueError):
    """A JSON value is too large or nested too deep to be looked at."""


def size_of(value: object, most: int = MOST_SIZE) -> int:
    """Return how many characters of JSON a value takes.

    Raises:
        TooLarge: they are more than `most`, it is nested deeper than MOST_LEVELS, or a number has too many digits.
    """
    if levels_of(value) > MOST_LEVELS:
        raise TooLarge(f"nested deeper than {MOST_LEVELS} levels")
    try:
        size = len(json.dumps(value))
    except ValueError as exc:  # Python refuses to print 4,300 digits
        raise TooLarge(f"not to be read: {exc}") from exc
    if size > most:
        raise TooLarge(f"larger than {MOST_SIZE:,} characters")
    return size


def levels_of(value: object, most: int = MOST_LEVELS + 1) -> int:
    """Return how deep a JSON value is nested, 0 for a text or a number. No more than `most` levels are counted."""
    members = members_of(value) if most else []
    return 1 + max((levels_of(member, most - 1) for member in members), default=0) if members else 0


def members_of(value: Any) -> list[Any]:
    """Return the members of an object or an array; none of anything else."""
    if isinstance(value, dict):
        return list(cast("dict[str, Any]", value).values())
    return list(cast("list[Any]", value)) if isinstance(value, list | tuple) else []
