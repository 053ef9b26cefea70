"""The tools of one episode: does a call name one of them, and do its arguments fit the schema?

Checked before the environment is called (promise 3), so that a model's mistake costs no round trip and is answered by
the smallest helpful line. A schema comes from the environment: it is trusted and may contain mistakes. Arguments come
from a model: they are not trusted, and their size is limited first. jsonschema-rs applies one to the other. Nothing is
fetched. The module knows nothing of sessions.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from functools import cached_property, lru_cache
from typing import Any, cast

import jsonschema_rs
from jsonschema_rs import ValidationError, ValidationErrorKind
from orl_core.errors import SessionError, boundary, cut
from orl_core.messages import FailureKind, ParseFailure, ToolCall, ToolSpec
from orl_core.text import clean, map_strings

MOST_CALLS = 32  # in one action; what follows is answered by one failure
LONGEST_NAMES = 2_000  # characters of the tools' names in one message
LONGEST_LINE = 500  # characters of an answer, and of what is wrong with a schema
INLINE_SIZE = 8_000  # characters of an action's arguments that are checked on the event loop, and of small tools
MOST_SIZE = 4 << 20  # characters of JSON
MOST_LEVELS = 64  # of nesting: at 50,000 levels jsonschema-rs ends the process
LONGEST_GIVEN = 80  # characters of what was given, in an answer to a wrong call
MOST_ALTERNATIVES = 4096  # of all levels together, that are compared to say what is wrong
_GIVEN = "\0"  # stands for the given value in a message
# The linear engine first. Look-ahead and back-references need the other, which limits its backtracking.
_ENGINES = (jsonschema_rs.RegexOptions(), jsonschema_rs.FancyRegexOptions())

_SCHEMAS_BY_NAME = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
_VALUES = frozenset({"enum", "const", "default", "examples", "example"})


class Toolbox:
    """The tools that the environment listed, by name. `large` ones take long to render.

    Raises:
        SessionError: a tool's `parameters` are not a JSON schema.
    """

    def __init__(self, tools: Sequence[ToolSpec]) -> None:
        self._schemas: dict[str, Schema] = {}
        size = 0
        for tool in tools:
            with boundary(SessionError, f"tool `{_short(tool.name)}` has parameters that are not a JSON schema"):
                text = json.dumps(tool.parameters)
                size += len(text) + len(tool.description)
                self._schemas[tool.name] = _schema(text)
        self.large = size > INLINE_SIZE

    @cached_property
    def names(self) -> str:
        """Return the tools' names for a message to the model, cut if too long for one."""
        names = ", ".join(sorted(self._schemas)) or "none"
        return names if len(names) <= LONGEST_NAMES else names[:LONGEST_NAMES] + "…"

    async def check_all(
        self, calls: Sequence[ToolCall | ParseFailure], most: int | None
    ) -> Sequence[ToolCall | ParseFailure]:
        """Return what can be made of an action's calls, in order. `most` is how many results the template can show.

        More than that cannot be answered one by one: none is made, and one failure answers them all.
        """
        if most is not None and len(calls) > most:
            message = f"{len(calls)} calls at once, and none was made; make at most {most} in one turn"
            return [ParseFailure(kind=FailureKind.TOO_MANY_CALLS, message=message)]
        first = calls[:MOST_CALLS]
        heavy = excess_of([call.arguments for call in first if isinstance(call, ToolCall)], INLINE_SIZE)
        checked = await asyncio.to_thread(self._check_each, first) if heavy else self._check_each(first)
        if len(calls) > MOST_CALLS:
            message = f"{len(calls)} calls at once; only the first {MOST_CALLS} were made"
            checked.append(ParseFailure(kind=FailureKind.TOO_MANY_CALLS, message=message, id=calls[MOST_CALLS].id))
        return checked

    def _check_each(self, calls: Sequence[ToolCall | ParseFailure]) -> list[ToolCall | ParseFailure]:
        return [(self.check(call) or call) if isinstance(call, ToolCall) else call for call in calls]

    def check(self, call: ToolCall) -> ParseFailure | None:
        """Return None if `call` can be made, else what is wrong with it in one line: path, given, expected.

        Raises:
            SessionError: the tool's schema cannot be applied.
        """
        schema = self._schemas.get(call.name)
        if schema is None:
            message = f"unknown tool `{_short(call.name)}`; the tools are: {self.names}"
            return ParseFailure(kind=FailureKind.UNKNOWN_TOOL, name=call.name, message=message, id=call.id)
        with boundary(SessionError, f"applying the schema of tool `{_short(call.name)}`"):
            excess = excess_of(call.arguments)
            complaint = f"the arguments are {excess}" if excess else schema.complaint(call.arguments)
        if not complaint:
            return None
        message = _line(f"invalid arguments for `{call.name}` {complaint}")
        return ParseFailure(kind=FailureKind.INVALID_ARGUMENTS, name=call.name, message=message, id=call.id)


def _short(text: str) -> str:
    return " ".join(text[:LONGEST_GIVEN].split())


def _line(text: str) -> str:
    return cut(" ".join(cut(text, 2 * LONGEST_LINE).split()), LONGEST_LINE)


@lru_cache(maxsize=256)
def _schema(text: str) -> Schema:
    """Return the schema of `text`, in JSON. It takes milliseconds, once for all episodes."""
    return Schema(json.loads(text))


class Schema:
    """A JSON schema, ready to be applied.

    `$schema` may name draft 4, 6, 7 or 2019-09; without a known name it is read by draft 2020-12. `nullable` of
    OpenAPI 3.0 is obeyed.

    Raises:
        ValueError: it is not a schema, refers to nothing or to another document, or has a pattern that no engine reads.
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
        except ValidationError as error:  # the first; `iter_errors` would make them all
            return f"at {_path(error.instance_path)}: {_words(error)}"
        return ""


def _validator(tree: dict[str, Any]) -> Any:
    """Return the validator of a schema, with the first engine that reads its patterns."""
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
    wrong = f"at {_path(last.instance_path)}: {_words(last)}" if isinstance(last, ValidationError) else str(last)
    draft = jsonschema_rs.validator_cls_for(tree).__name__.removeprefix("Draft").removesuffix("Validator")
    draft = f"{draft[:4]}-{draft[4:]}".rstrip("-")
    raise ValueError(_line(f"{wrong} (read by draft {draft} of JSON Schema)")) from last


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


def _words(error: ValidationError) -> str:
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


def excess_of(value: object, most: int = MOST_SIZE) -> str:
    """Say what keeps a JSON value from being looked at: its depth, or more than `most` characters. "" if nothing."""
    if levels_of(value) > MOST_LEVELS:
        return f"nested deeper than {MOST_LEVELS} levels"
    try:
        size = len(json.dumps(value))
    except ValueError as exc:  # Python refuses to print 4,300 digits
        return f"not to be read: {exc}"
    return f"larger than {most:,} characters" if size > most else ""


def levels_of(value: object, most: int = MOST_LEVELS + 1) -> int:
    """Return how deep a JSON value is nested, 0 for a text or a number. No more than `most` levels are counted."""
    members = members_of(value) if most else []
    return 1 + max((levels_of(member, most - 1) for member in members), default=0) if members else 0


def members_of(value: Any) -> list[Any]:
    """Return the members of an object or an array; none of anything else."""
    if isinstance(value, dict):
        return list(cast("dict[str, Any]", value).values())
    return list(cast("list[Any]", value)) if isinstance(value, list | tuple) else []
