"""A JSON schema from an environment, applied by jsonschema-rs to arguments from a model.

The schema is trusted and may contain mistakes. The arguments are not trusted: `json_size` limits them first. Nothing is
fetched. The module knows nothing of tools, sessions and event loops.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, cast

import jsonschema_rs
from jsonschema_rs import ValidationErrorKind
from orl_core.text import clean, map_strings

from orl_rollout.loop.json_size import levels_of, members_of

LONGEST_GIVEN = 80  # characters of what was given, in an answer to a wrong call
MOST_ALTERNATIVES = 4096  # of all levels together, that are compared to say what is wrong
_GIVEN = "\0"  # stands for the given value in a message
# The linear engine first. Look-ahead and back-references need the other, which limits its backtracking.
_ENGINES = (jsonschema_rs.RegexOptions(), jsonschema_rs.FancyRegexOptions())

_Refused = jsonschema_rs.ValidationError
_SCHEMAS_BY_NAME = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
_VALUES = frozenset({"enum", "const", "default", "examples", "example"})


class NoSchema(ValueError):
    """A JSON value is not a JSON schema."""


class Schema:
    """A JSON schema, ready to be applied. It is no larger than `json_size` allows.

    `$schema` may name draft 4, 6, 7 or 2019-09; without a known name it is read by draft 2020-12. `nullable` of
    OpenAPI 3.0 is obeyed.

    Raises:
        NoSchema: it is not a schema, refers to nothing or to another document, or has a pattern that no engine reads.
    """

    def __init__(self, parameters: Mapping[str, Any]) -> None:
        tree = map_strings(parameters, clean)
        self._alternatives = _most_alternatives(tree)
        self._validator = _validator(tree)

    def complaint(self, arguments: Mapping[str, Any]) -> str:
        """Return where and why the schema refuses `arguments`, empty if it accepts them."""
        tree = map_strings(arguments, clean)
        if self._validator.is_valid(tree):
            return ""
        # A schema that refers to itself compares alternatives ** levels of them: a day for a deep expression.
        if self._alternatives ** levels_of(tree) > MOST_ALTERNATIVES:
            return "at $: they fit none of the alternatives of the tool's schema, and are nested too deep to say more"
        try:
            self._validator.validate(tree)
        except _Refused as error:  # the first; `iter_errors` would make them all
            return f"at {_path(error.instance_path)}: {_words(error)}"
        return ""


def _validator(tree: dict[str, Any]) -> Any:
    """Return the validator of a schema, of the draft that `$schema` names, with the first engine for its patterns."""
    refused: list[ValueError] = []
    for schema in (_with_null(tree), tree):  # the second for a `$ref` whose path leads through a nullable schema
        for engine in _ENGINES:
            try:
                return jsonschema_rs.validator_for(
                    schema, mask=_GIVEN, retriever=_refuse_to_fetch, pattern_options=engine
                )
            except ValueError as exc:
                refused.append(exc)
    last = refused[-1]
    wrong = f"at {_path(last.instance_path)}: {_words(last)}" if isinstance(last, _Refused) else str(last)
    draft = jsonschema_rs.validator_cls_for(tree).__name__.removeprefix("Draft").removesuffix("Validator")
    draft = f"{draft[:4]}-{draft[4:]}".rstrip("-")
    raise NoSchema(f"{wrong} (read by draft {draft} of JSON Schema)") from last


def _with_null(schema: Any) -> Any:
    """Return a schema that accepts null wherever OpenAPI's `nullable` is true."""
    if isinstance(schema, list):
        return [_with_null(member) for member in cast("list[Any]", schema)]
    if not isinstance(schema, dict):
        return schema
    changed = {
        key: {name: _with_null(member) for name, member in cast("dict[str, Any]", value).items()}
        if key in _SCHEMAS_BY_NAME and isinstance(value, dict)
        else value
        if key in _VALUES
        else _with_null(value)
        for key, value in cast("dict[str, Any]", schema).items()
    }
    return {"anyOf": [changed, {"type": "null"}]} if changed.get("nullable") is True else changed


def _refuse_to_fetch(address: str) -> Any:
    raise ValueError(f"orl does not fetch {address}")


def _words(error: _Refused) -> str:
    """Say what the value is and what is expected. If there are alternatives, say what each of them has against it."""
    shown = json.dumps(error.instance, ensure_ascii=False)
    value = shown if len(shown) <= LONGEST_GIVEN else f"{shown[:LONGEST_GIVEN]}…"
    kind = error.kind
    if isinstance(kind, ValidationErrorKind.AnyOf | ValidationErrorKind.OneOfNotValid):
        return ", and ".join(dict.fromkeys(_words(each) for alternative in kind.context for each in alternative))
    if isinstance(kind, ValidationErrorKind.Enum):  # the message itself names only two of them
        return f"{value} is not one of {json.dumps(kind.options, ensure_ascii=False)}"
    return error.message.replace(_GIVEN, value)


def _path(steps: list[str | int]) -> str:
    return "$" + "".join(f".{step}" if str(step).isidentifier() else f"[{step!r}]" for step in steps)


def _most_alternatives(tree: Any) -> int:
    """Return the length of the longest `anyOf` or `oneOf` in a schema, at least 1."""
    lengths = [_most_alternatives(each) for each in members_of(tree)]
    if isinstance(tree, dict):
        schema = cast("dict[str, Any]", tree)
        lengths += [len(schema[key]) for key in ("anyOf", "oneOf") if isinstance(schema.get(key), list)]
    return max(lengths, default=1) or 1
