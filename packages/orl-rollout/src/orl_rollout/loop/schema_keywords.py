"""The keywords of JSON Schema, each of which costs steps. A check ends when its steps are spent.

So no schema and no arguments can hold the process, whatever they refer to. jsonschema judges; what it does in more
than linear time, or with Python's backtracking `re`, is done here. Patterns run in Rust's `regex`, which takes linear
time.

Some are reported and not enforced: `unevaluatedItems`, `unevaluatedProperties`, a pattern that a linear engine cannot
express (look-around, back-references), and one that compiles to more than 32 KiB. No pattern is applied to a text of
more than 32,768 characters.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from fractions import Fraction
from functools import lru_cache
from typing import Any, cast

import jsonschema_rs
from jsonschema import Draft202012Validator, validators
from jsonschema.exceptions import ValidationError
from orl_core.errors import SessionError
from orl_core.text import clean

from orl_rollout.logs import logger_of
from orl_rollout.loop.json_size import MOST_SIZE, UNIT, TooLarge

logger = logger_of(__name__)

MOST_STEPS = 50_000  # of one check: about a second
MOST_APPLIED = 100  # keywords inside keywords, down to the deepest value
MOST_IN_PLACE = 32  # of them applied to one and the same value: `$ref`, `not`, `allOf` ...
_STEP = 16  # values that cost a step to look at,
_COMPARED = 2  # and to compare
_PATTERN_LENGTH = 2_000
_PATTERN_STEPS = 500  # a compilation takes up to 40 ms
_PATTERN_TEXT = 1 << 15  # characters that a pattern is applied to: about 2 µs each for the largest pattern
_CHARACTERS = 10  # of them cost a step
_REGEX = jsonschema_rs.RegexOptions(size_limit=1 << 15, dfa_size_limit=1 << 20)  # bytes: time grows with both


class TooCostly(SessionError):
    """A check takes more steps than it was given, or the schema refers to itself."""


class Meter:
    """The steps that are `left` for one check or several.

    `sizes` holds the containers of one check's schema and arguments, by `id`; it is set before the check begins.
    """

    def __init__(self, steps: int) -> None:
        self.left = steps
        self.sizes: Mapping[int, int] = {}
        self._applied: list[tuple[object, int]] = []  # the values of the keywords that are open, and their row in place

    @contextmanager
    def keyword(self, value: object, instance: object) -> Generator[None]:
        """Open a keyword: one step, and more where it looks at large values.

        Raises:
            TooLarge: the arguments are nested too deep to be judged.
            TooCostly: the schema refers to itself, or the steps are spent.
        """
        above, row = self._applied[-1] if self._applied else (None, 0)
        row = row + 1 if above is instance else 1
        if row > MOST_IN_PLACE:
            raise TooCostly(f"the schema applies more than {MOST_IN_PLACE} nested keywords to one value")
        if len(self._applied) >= MOST_APPLIED:
            raise TooLarge("nested too deep for this schema")
        self._applied.append((instance, row))
        try:
            self.spend(value, instance)
            yield
        finally:
            self._applied.pop()

    def spend(self, *values: object) -> None:
        """Count a step, and more where `values` are large."""
        self.take(1 + sum(self._size(value) for value in values) // _STEP)

    def compare(self, *values: object) -> None:
        """Count what it takes to compare `values` with others."""
        self.take(sum(self._size(value) for value in values) // _COMPARED)

    def take(self, steps: int) -> None:
        """Count `steps`."""
        self.left -= steps
        if self.left < 0:
            raise TooCostly(f"the schema takes more than {MOST_STEPS:,} steps to judge these arguments")

    def _size(self, value: object) -> int:
        return len(value) // UNIT if isinstance(value, str) else self.sizes.get(id(value), 0)


METER: ContextVar[Meter] = ContextVar("METER")


@lru_cache(maxsize=64)
def _matcher(pattern: str) -> Callable[[str], bool] | None:
    """Return a search for `pattern`, which takes linear time; None where there is none, which is logged."""
    METER.get().take(_PATTERN_STEPS)
    if len(pattern) <= _PATTERN_LENGTH:
        try:
            return jsonschema_rs.Draft202012Validator({"pattern": pattern}, pattern_options=_REGEX).is_valid
        except (jsonschema_rs.ValidationError, ValueError):
            pass
    logger.warning("the pattern %.200r of a tool's schema is not enforced: it is none, not linear, or large", pattern)
    return None


def _found(pattern: str, text: str) -> bool:
    """Tell whether `text` matches; a pattern that is not enforced, and a text too long for one, always do."""
    matches = _matcher(pattern) if len(text) <= _PATTERN_TEXT else None
    METER.get().take(1 + len(text) // _CHARACTERS if matches else 1)
    return matches is None or matches(clean(text))


_Judge = Callable[[Any, Any, Any, Any], "Iterator[ValidationError] | None"]
KEYWORDS: Mapping[str, _Judge] = Draft202012Validator.VALIDATORS


def _pattern(_: Any, pattern: str, instance: object, __: object) -> Iterator[ValidationError]:
    if isinstance(instance, str) and not _found(pattern, instance):
        yield ValidationError(f"{instance!r} does not match {pattern!r}")


def _pattern_properties(
    validator: Any, patterns: Mapping[str, Any], instance: Any, _: object
) -> Iterator[ValidationError]:
    if isinstance(instance, dict):
        for pattern, schema in patterns.items():
            for key, value in cast("dict[str, Any]", instance).items():
                if _found(pattern, key):
                    yield from validator.descend(value, schema, path=key, schema_path=pattern)


def _additional_properties(
    validator: Any, additional: Any, instance: Any, schema: Mapping[str, Any]
) -> Iterator[ValidationError]:
    if isinstance(instance, dict):
        known = dict(schema.get("properties", {}))
        METER.get().take(len(known) // _STEP)
        for pattern in schema.get("patternProperties", {}):
            known.update({key: True for key in cast("dict[str, Any]", instance) if _found(pattern, key)})
        yield from KEYWORDS["additionalProperties"](validator, additional, instance, {"properties": known}) or ()


def _unique_items(_: Any, unique: bool, instance: Any, __: object) -> Iterator[ValidationError]:
    if unique and isinstance(instance, list):
        items = cast("list[Any]", instance)
        METER.get().compare(items)
        if len(set(map(_text, items))) < len(items):
            yield ValidationError(f"{instance!r} has non-unique elements")


def _compared(judge: _Judge) -> _Judge:
    """Charge for a comparison of whole values."""

    def applied(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[ValidationError] | None:
        METER.get().compare(value, instance)
        return judge(validator, value, instance, schema)

    return applied


def _text(value: Any) -> str:
    """Return a text that equal values share, and no others."""
    return json.dumps(_canonical(value), sort_keys=True)


def _canonical(value: Any) -> Any:
    """Return `value` with every whole number as an integer: 1 and 1.0 are equal in JSON."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, dict):
        return {key: _canonical(member) for key, member in cast("dict[str, Any]", value).items()}
    if isinstance(value, list):
        return [_canonical(member) for member in cast("list[Any]", value)]
    return value


def _multiple_of(validator: Any, factor: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
    try:
        yield from KEYWORDS["multipleOf"](validator, factor, instance, schema) or ()
    except OverflowError:  # one of them is beyond every float
        if Fraction(str(instance)) % Fraction(str(factor)):
            yield ValidationError(f"{instance!r} is not a multiple of {factor!r}")


def _metered(judge: _Judge) -> _Judge:
    def applied(validator: Any, value: Any, instance: Any, schema: Any) -> Generator[ValidationError]:
        with METER.get().keyword(value, instance):
            yield from judge(validator, value, instance, schema) or ()

    return applied


def _referred(judge: _Judge) -> _Judge:
    """Charge for a reference what a search for its anchor may cost: the whole schema."""

    def applied(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[ValidationError] | None:
        if value != "#" and not value.startswith("#/"):
            METER.get().take(MOST_SIZE // _STEP)
        return judge(validator, value, instance, schema)

    return applied


def _ignored(keyword: str) -> _Judge:
    def ignored(*_: object) -> None:
        _say_ignored(keyword)

    return ignored


@lru_cache
def _say_ignored(keyword: str) -> None:
    logger.warning("the keyword `%s` of a tool's schema is not enforced", keyword)


_CHANGED: Mapping[str, _Judge] = {
    "pattern": _pattern,
    "patternProperties": _pattern_properties,
    "additionalProperties": _additional_properties,
    "uniqueItems": _unique_items,
    "multipleOf": _multiple_of,
    "enum": _compared(KEYWORDS["enum"]),
    "const": _compared(KEYWORDS["const"]),
    "unevaluatedItems": _ignored("unevaluatedItems"),
    "unevaluatedProperties": _ignored("unevaluatedProperties"),
    "$ref": _referred(KEYWORDS["$ref"]),
    "$dynamicRef": _referred(KEYWORDS["$dynamicRef"]),
}

extend: Any = validators.extend  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
BoundedValidator: Any = extend(
    Draft202012Validator, {name: _metered(judge) for name, judge in {**KEYWORDS, **_CHANGED}.items()}
)
