"""The size of a JSON value that comes from outside, counted before anything else is done with it.

A value counts as one, a text as one for each 64 characters. It knows nothing of what the value means.
"""

from __future__ import annotations

from typing import cast

MOST_SIZE = 50_000  # values, and each 64 characters of a text
MOST_LEVELS = 64  # of nesting: at 50,000 levels jsonschema-rs ends the process
MOST_BITS = 14_000  # of a number: Python refuses to print 4,300 digits
UNIT = 64  # characters of a text that count as one value


class TooLarge(ValueError):
    """A JSON value has too many values or levels to be looked at."""


def size_of(value: object, most: int = MOST_SIZE) -> int:
    """Return the size of a JSON value.

    Raises:
        TooLarge: it is larger than `most`, or nested deeper than MOST_LEVELS.
    """
    size = _size(value, most, 0)
    if size > most:
        raise TooLarge(f"larger than {MOST_SIZE:,} values, where {UNIT} characters count as one")
    return size


def _size(value: object, most: int, level: int) -> int:
    """Return the size of `value`, or any number above `most` once it is above."""
    if isinstance(value, str):
        return 1 + len(value) // UNIT
    if isinstance(value, int) and value.bit_length() > MOST_BITS:
        raise TooLarge(f"not to be read: a number of more than {MOST_BITS:,} bits")
    if not isinstance(value, dict | list | tuple):
        return 1
    if level == MOST_LEVELS:
        raise TooLarge(f"nested deeper than {MOST_LEVELS} levels")
    container = cast("dict[object, object] | list[object] | tuple[object, ...]", value)
    size = 1 + len(container)
    keys, members = (container, container.values()) if isinstance(container, dict) else ((), container)
    size += sum(len(key) // UNIT for key in keys if isinstance(key, str))
    for member in members:
        if size > most:
            break
        size += _size(member, most - size, level + 1)
    return size
