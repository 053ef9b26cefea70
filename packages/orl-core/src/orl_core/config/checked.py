"""Values of a configuration are checked however it is built: decoded from a file, or written in Python."""

from __future__ import annotations

import msgspec
from msgspec import Struct, structs


class Checked(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A Struct whose fields have the types and bounds that they state.

    Raises:
        ValueError: a value is of another type or out of bounds. The message names the class and the field.
    """

    def __post_init__(self) -> None:
        check_fields(self)


def check_fields(struct: Struct) -> None:
    """Refuse a field of another type, or out of its bounds.

    Raises:
        ValueError: as `Checked`.
    """
    for field in structs.fields(struct):
        try:
            msgspec.convert(getattr(struct, field.name), field.type)
        except msgspec.ValidationError as exc:
            raise ValueError(f"`{field.name}` of {type(struct).__name__}: {exc}") from None
