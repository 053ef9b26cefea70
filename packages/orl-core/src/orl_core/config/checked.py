"""Values of a configuration are checked however it is built: decoded from a file, or written in Python."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import msgspec
from msgspec import Struct, structs


class Checked(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Check the types and bounds of all fields, and how they fit each other.

    Raises:
        ValueError: a value is of another type or out of bounds, or two do not fit. The message names each field.
    """

    def __post_init__(self) -> None:
        for field in _fields(type(self)):
            try:
                msgspec.convert(getattr(self, field.name), field.type)
            except msgspec.ValidationError as exc:
                raise ValueError(f"`{field.name}` of {type(self).__name__}: {exc}") from None
        if mistakes := "\n".join(self.mistakes()):
            raise ValueError(mistakes)

    def mistakes(self) -> Iterator[str]:
        """Yield what is wrong between fields."""
        yield from ()


_fields = cache(structs.fields)  # which reads the annotations anew each time
