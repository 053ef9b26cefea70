"""The tools of one episode: does a call name one of them, and do its arguments fit the schema?

Checked before the environment is called (promise 3), so that a model's mistake costs no round trip and is answered by
the smallest helpful line. `tool_schema` judges within bounds, we word its first complaint. What a schema refers to
elsewhere is not fetched. The module knows nothing of sessions.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from functools import cached_property, lru_cache

from jsonschema.exceptions import ValidationError, relevance
from orl_core.errors import SessionError, boundary, cut
from orl_core.messages import FailureKind, ParseFailure, ToolCall, ToolSpec

from orl_rollout.loop.json_size import MOST_SIZE, TooLarge, size_of
from orl_rollout.loop.schema_keywords import MOST_STEPS, Meter, TooCostly
from orl_rollout.loop.tool_schema import NoSchema, Schema

MOST_CALLS = 32  # in one action; what follows is answered by one failure
MOST_TOOLS = 1_000
LONGEST_GIVEN = 80  # characters of what was given, in an answer to a wrong call
LONGEST_NAMES = 2_000  # characters of the tools' names in one message
LONGEST_LINE = 500  # characters of an answer, and of what is wrong with a schema
INLINE_STEPS = 400  # of an action's checks on the event loop, about 4 ms; the others move to a thread
STEP_VALUES = 4  # values of arguments that take as long to count as a step
INLINE_SIZE = 1_000  # of tools that are made ready on the event loop
CACHED_CHARACTERS = 1 << 14  # of a schema that is kept for other episodes
GUILTY_SIZE = 1_000  # of arguments, from which on a check that takes too long is the model's mistake


def size_of_tools(tools: Sequence[ToolSpec]) -> int:
    """Return the size of all `tools` together, as `json_size` counts.

    Raises:
        SessionError: they are too many or too large to be shown to a model.
    """
    if len(tools) > MOST_TOOLS:
        raise SessionError(f"the environment lists {len(tools)} tools; at most {MOST_TOOLS} are supported")
    size = 0
    for tool in tools:
        try:
            size += size_of([tool.name, tool.description, tool.parameters], MOST_SIZE - size)
        except TooLarge as exc:
            raise SessionError(f"tool `{_short(tool.name)}` makes the list of tools {exc}") from exc
    return size


class Toolbox:
    """The tools that the environment listed, by name.

    Raises:
        SessionError: a tool's `parameters` are not a JSON schema, or too large.
    """

    def __init__(self, tools: Sequence[ToolSpec]) -> None:
        self._schemas: dict[str, Schema] = {}
        self.large = size_of_tools(tools) > INLINE_SIZE
        for tool in tools:
            with boundary(SessionError, f"reading the schema of tool `{_short(tool.name)}`"):
                try:
                    self._schemas[tool.name] = _schema(json.dumps(tool.parameters))
                except NoSchema as exc:
                    what = f"tool `{_short(tool.name)}` has parameters that are no JSON schema"
                    raise SessionError(f"{what}: {_line(str(exc))}") from exc

    @classmethod
    async def of(cls, tools: Sequence[ToolSpec]) -> Toolbox:
        """Return the toolbox of `tools`, made on a thread where they are large.

        Raises:
            SessionError: as above.
        """
        if size_of_tools(tools) <= INLINE_SIZE:
            return cls(tools)
        return await asyncio.to_thread(cls, tools)

    @cached_property
    def names(self) -> str:
        """Return the tools' names for a message to the model, cut where they are too long for one."""
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
        inline = Meter(INLINE_STEPS)
        checked = [await self._checked(call, inline) for call in calls[:MOST_CALLS]]
        if len(calls) > MOST_CALLS:
            message = f"{len(calls)} calls at once; only the first {MOST_CALLS} were made"
            checked.append(ParseFailure(kind=FailureKind.TOO_MANY_CALLS, message=message))
        return checked

    async def _checked(self, call: ToolCall | ParseFailure, inline: Meter) -> ToolCall | ParseFailure:
        """Return what can be made of `call`, judged on a thread where `inline` has too few steps left."""
        if isinstance(call, ParseFailure):
            return call
        try:
            inline.take(size_of(call.arguments, STEP_VALUES * max(0, inline.left)) // STEP_VALUES)
            return self._check(call, inline) or call
        except (TooCostly, TooLarge):
            return await asyncio.to_thread(self.check, call) or call

    def check(self, call: ToolCall) -> ParseFailure | None:
        """Return None where `call` can be made, else what is wrong with it in one line: path, given, expected.

        Raises:
            SessionError: the tool's schema cannot be applied: a reference leads nowhere, or it takes too many steps.
        """
        try:
            return self._check(call, Meter(MOST_STEPS))
        except TooCostly as exc:
            if size_of(call.arguments) > GUILTY_SIZE:
                return _invalid(call, "the arguments are too large to be checked")
            raise SessionError(f"reading the schema of tool `{_short(call.name)}`: {exc}") from exc

    def _check(self, call: ToolCall, meter: Meter) -> ParseFailure | None:
        schema = self._schemas.get(call.name)
        if schema is None:
            message = f"unknown tool `{_short(call.name)}`; the tools are: {self.names}"
            return ParseFailure(kind=FailureKind.UNKNOWN_TOOL, name=call.name, message=message)
        with boundary(SessionError, f"reading the schema of tool `{_short(call.name)}`"):
            try:
                errors = schema.errors(call.arguments, meter)
            except TooLarge as exc:
                return _invalid(call, f"the arguments are {exc}")
            if not errors:
                return None
            error = max(errors, key=relevance)
            return _invalid(call, f"at {error.json_path}: {_words(error)}")


def _invalid(call: ToolCall, what: str) -> ParseFailure:
    message = _line(f"invalid arguments for `{call.name}` {what}")
    return ParseFailure(kind=FailureKind.INVALID_ARGUMENTS, name=call.name, message=message)


def _short(text: str) -> str:
    return " ".join(text[:LONGEST_GIVEN].split())


def _line(text: str) -> str:
    return cut(" ".join(cut(text, 2 * LONGEST_LINE).split()), LONGEST_LINE)


def _words(error: ValidationError) -> str:
    """Say what was given and expected; where there are alternatives, what each of them has against it."""
    if not error.context:
        given = repr(error.instance)
        return (
            error.message.replace(given, f"{given[:LONGEST_GIVEN]}…") if len(given) > LONGEST_GIVEN else error.message
        )
    return ", and ".join(dict.fromkeys(_words(alternative) for alternative in error.context))


def _schema(text: str) -> Schema:
    """Return the schema of `text`, in JSON; a short one is made once for all episodes, which takes milliseconds."""
    return _kept(text) if len(text) <= CACHED_CHARACTERS else Schema(json.loads(text))


@lru_cache(maxsize=256)
def _kept(text: str) -> Schema:
    return Schema(json.loads(text))
