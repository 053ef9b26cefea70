"""Find every mistake in a configuration that does not decode: its path, its value, and the values expected there.

msgspec stops at the first mistake, so the tree is decoded part by part, from the leaves up. A wrong part is left out of
the mapping that holds it, and a check that names a key that was left out does not count. A value is shown only where
the schema allows no text: a text could be a secret.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any, get_args, get_origin

import msgspec
from msgspec import UNSET, Struct, inspect, structs

from orl_core.config.fields import members_of, values_of
from orl_core.config.moved import line_for
from orl_core.text import nearest, non_finite

MOST_MISTAKES = 20  # in one message
MOST_CHARACTERS = 200  # of a value in it
_SHOWN = (inspect.IntType, inspect.FloatType, inspect.BoolType, inspect.LiteralType, inspect.NoneType, inspect.DateType)


def find_mistakes(tree: object, kind: type[Struct], path: str = "$") -> list[str]:
    """Return the mistakes in `tree`, plain JSON types that do not decode to `kind`, each in one line."""
    search = _Search()
    search.sound(tree, kind, path)
    return [" ".join(mistake.split()) for mistake in search.mistakes]


def listed(mistakes: Sequence[str]) -> str:
    """Return the mistakes in one line, numbered if there are several."""
    if len(mistakes) == 1:
        return mistakes[0]
    rows = "; ".join(f"({number}) {mistake}" for number, mistake in enumerate(mistakes[:MOST_MISTAKES], 1))
    return f"{len(mistakes)} mistakes: {rows}{'; ...' if len(mistakes) > MOST_MISTAKES else ''}"


class _Search:
    """Collect mistakes and the names of the keys that were left out because of them."""

    def __init__(self) -> None:
        self.mistakes: list[str] = []
        self.left_out: set[str] = set()

    def sound(self, value: Any, kind: Any, path: str) -> object:
        """Return what of `value` decodes to `kind`, or UNSET if nothing does."""
        if (holder := _holder(value, kind)) is not None:
            return self._sound_mapping(value, holder, kind, path)
        if place := non_finite(value, path):
            return self._wrong(f"`{place}`: expected a finite number within 64 bits")
        try:
            msgspec.convert(value, kind)
        except (msgspec.ValidationError, UnicodeError) as exc:
            below = str(exc).partition(" - at `$")[2].rstrip("`")
            known = not isinstance(value, dict | list) and all(isinstance(each, _SHOWN) for each in members_of(kind))
            shown = f" is {json.dumps(value, default=str)[:MOST_CHARACTERS]}" if known else ""
            return self._wrong(f"`{path}{below}`{shown}: expected {values_of(kind)}")
        return value

    def _sound_mapping(self, value: dict[object, object], holder: Any, kind: object, path: str) -> object:
        is_struct = get_origin(holder) is not dict
        kinds = self._kinds_of(value, holder, path) if is_struct else dict.fromkeys(value, get_args(holder)[1])
        rest: dict[object, object] = {}
        for key, member_kind in kinds.items():
            name = str(key)
            wrong_key = not is_struct and self.sound(key, get_args(holder)[0], f"key {name} in {path}") is UNSET
            member = self.sound(value[key], member_kind, f"{path}.{name}")
            if wrong_key or member is UNSET or member == {} != value[key]:
                self.left_out.add(name)
            else:
                rest[key] = member
        try:
            msgspec.convert(rest, holder if is_struct else kind)
        except msgspec.ValidationError as exc:
            for line in str(exc).splitlines() if is_struct else ():
                if not any(f"`{name}`" in line for name in self.left_out):
                    self._wrong(f"`{path}`: {line}")
            return UNSET if is_struct or value else self._wrong(f"`{path}` is empty: expected {values_of(kind)}")
        return rest

    def _kinds_of(self, value: dict[object, object], holder: type[Struct], path: str) -> dict[object, Any]:
        """Return the types of the keys of `value` that are fields of `holder`; others, and missing ones, are wrong."""
        fields = {field.encode_name: field for field in structs.fields(holder)}
        for name in (str(key) for key in value if key not in fields):
            near = nearest(name, fields) if len(self.mistakes) < MOST_MISTAKES else ""
            unknown = f"`{path}` has no key `{name}`: {f'did you mean `{near}`?' if near else 'remove it'}"
            self._wrong(line_for(f"{path}.{name}") or unknown)
        for name in (name for name, field in fields.items() if field.required and name not in value):
            self._wrong(f"`{path}` needs the key `{name}`: add it")
            self.left_out.add(name)
        return {key: fields[key].type for key in value if isinstance(key, str) and key in fields}

    def _wrong(self, mistake: str) -> msgspec.UnsetType:
        self.mistakes.append(mistake.replace("$.trainer.sections.", "$.trainer."))
        return UNSET


def _holder(value: object, kind: Any) -> Any:
    """Return the Struct or the `dict[K, V]` of `kind` that a mapping decodes to; None where `value` is no mapping."""
    while get_origin(kind) is Annotated:
        kind = get_args(kind)[0]
    members = (kind,) if get_origin(kind) is dict or isinstance(kind, type) else get_args(kind)
    holders = (
        each for each in members if get_origin(each) is dict or (isinstance(each, type) and issubclass(each, Struct))
    )
    return next(holders, None) if isinstance(value, dict) else None
