"""Describe the fields of the configuration: in words for messages, pages and help, as a JSON schema for editors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from msgspec import inspect

_WORDS: tuple[tuple[type[inspect.Type], str], ...] = (
    (inspect.IntType, "whole number"),
    (inspect.FloatType, "number"),
    (inspect.StrType, "text"),
    (inspect.DateType, "date"),
    (inspect.NoneType, "null"),
    (inspect.DictType, "mapping"),
    (inspect.StructType, "mapping"),
)
_BOUNDS = {"ge": ">=", "gt": ">", "le": "<=", "min_length": "of length >="}


def description_of(kind: object) -> str:
    """Return the description of a field of type `kind`, or an empty string."""
    return _stated(inspect.type_info(kind), "description")


def option_of(kind: object) -> str:
    """Return the name on the command line that a field of type `kind` states, or an empty string."""
    extra: dict[str, str] = getattr(inspect.type_info(kind), "extra", None) or {}
    return extra.get("option", "")


def values_of(kind: object) -> str:
    """Return the values that a field of type `kind` takes, in words: `whole number >= 1 or null`."""
    words = [*dict.fromkeys(word for member in members_of(kind) for word in _words(member))]
    return " or ".join([", ".join(words[:-1]), words[-1]] if words[1:] else words)


def members_of(kind: object) -> tuple[inspect.Type, ...]:
    """Return the members of a union, without its description; of any other type, the type itself."""
    info = inspect.type_info(kind)
    while isinstance(info, inspect.Metadata) and not _stated(info, "title"):
        info = info.type
    return info.types if isinstance(info, inspect.UnionType) else (info,)


def _stated(info: inspect.Type, key: Literal["title", "description"]) -> str:
    """Return the title or the description that `Meta` gives a type, or an empty string."""
    stated: dict[str, str] = getattr(info, "extra_json_schema", None) or {}
    return stated.get(key, "")


def _words(member: inspect.Type) -> Iterator[str]:
    if title := _stated(member, "title"):
        yield title
    elif isinstance(member, inspect.BoolType):
        yield from ("true", "false")
    elif isinstance(member, inspect.LiteralType):
        yield from map(str, member.values)
    else:
        name = next((word for kind, word in _WORDS if isinstance(member, kind)), "any value")
        if isinstance(member, inspect.VarTupleType):
            name = f"list of {next(_words(member.item_type))}"
        bounds = ((sign, getattr(member, bound, None)) for bound, sign in _BOUNDS.items())
        yield " ".join(
            (name, " and ".join(f"{sign} {value:g}" for sign, value in bounds if value is not None))
        ).rstrip()
