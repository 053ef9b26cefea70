"""The tools of one episode: does a call name one of them, and do its arguments fit the schema?

Checked before the environment is called (promise 3), so that a model's mistake costs no round trip and is answered by
the smallest helpful line. The module knows nothing of sessions; jsonschema judges, we word its first complaint. What a
schema refers to elsewhere is not fetched.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cached_property, lru_cache
from typing import cast

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError, ValidationError, relevance
from orl_core.errors import SessionError, boundary
from orl_core.messages import FailureKind, ParseFailure, ToolCall, ToolSpec
from referencing import Registry

MOST_CALLS = 32  # in one action; what follows is answered by one failure
LONGEST_GIVEN = 80  # characters of what was given, in an answer to a wrong call


class Toolbox:
    """The tools that the environment listed, by name.

    Raises:
        SessionError: a tool's `parameters` are not a JSON schema.
    """

    def __init__(self, tools: Sequence[ToolSpec]) -> None:
        self._validators: dict[str, Draft202012Validator] = {}
        for tool in tools:
            try:
                self._validators[tool.name] = _validator(json.dumps(tool.parameters))
            except SchemaError as exc:
                raise SessionError(f"tool `{tool.name}` has parameters that are no JSON schema: {exc.message}") from exc

    @cached_property
    def names(self) -> str:
        """The tools' names for a message to the model."""
        return ", ".join(sorted(self._validators)) or "none"

    def check_all(
        self, calls: Sequence[ToolCall | ParseFailure], most: int | None
    ) -> Sequence[ToolCall | ParseFailure]:
        """What can be made of an action's calls, in order. `most` is how many the model's template has results for.

        More than that cannot be answered one by one: none is made, and one failure answers them all.
        """
        if most is not None and len(calls) > most:
            message = f"{len(calls)} calls at once, and none was made; make at most {most} in one turn"
            return [ParseFailure(kind=FailureKind.TOO_MANY_CALLS, message=message)]
        checked = [call if isinstance(call, ParseFailure) else self.check(call) or call for call in calls[:MOST_CALLS]]
        if len(calls) > MOST_CALLS:
            message = f"{len(calls)} calls at once; only the first {MOST_CALLS} were made"
            checked.append(ParseFailure(kind=FailureKind.TOO_MANY_CALLS, message=message))
        return checked

    def check(self, call: ToolCall) -> ParseFailure | None:
        """None where `call` can be made, else what is wrong with it in one line: path, given, expected.

        Raises:
            SessionError: the tool's schema cannot be applied: a reference leads nowhere, a pattern is no pattern.
        """
        validator = self._validators.get(call.name)
        if validator is None:
            given = " ".join(call.name[:LONGEST_GIVEN].split())
            message = f"unknown tool `{given}`; the tools are: {self.names}"
            return ParseFailure(kind=FailureKind.UNKNOWN_TOOL, name=call.name, message=message)
        with boundary(SessionError, f"reading the schema of tool `{call.name}`"):
            errors = cast("list[ValidationError]", list(validator.iter_errors(call.arguments)))  # pyright: ignore[reportUnknownMemberType]
        if not errors:
            return None
        error = max(errors, key=relevance)
        message = f"invalid arguments for `{call.name}` at {error.json_path}: {_words(error)}"
        return ParseFailure(kind=FailureKind.INVALID_ARGUMENTS, name=call.name, message=message[:500])


def _words(error: ValidationError) -> str:
    """What was given and expected; where there are alternatives, what each of them has against it."""
    if not error.context:
        given = repr(error.instance)
        return (
            error.message.replace(given, f"{given[:LONGEST_GIVEN]}…") if len(given) > LONGEST_GIVEN else error.message
        )
    return ", and ".join(dict.fromkeys(_words(alternative) for alternative in error.context))


@lru_cache(maxsize=1024)
def _validator(schema: str) -> Draft202012Validator:
    """The validator of a schema in JSON, checked once for all episodes: the check takes milliseconds.

    Raises:
        SchemaError: it is no JSON schema.
    """
    parameters = json.loads(schema)
    Draft202012Validator.check_schema(parameters)
    return Draft202012Validator(parameters, registry=Registry())
