"""The tools of one episode: does a call name one of them, and do its arguments fit the schema?

Checked before the environment is called (promise 3), so that a model's mistake costs no round trip and is answered by
the smallest helpful line. `tool_schema` judges. The module knows nothing of sessions.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from functools import cached_property, lru_cache

from orl_core.errors import SessionError, boundary, cut
from orl_core.messages import FailureKind, ParseFailure, ToolCall, ToolSpec

from orl_rollout.loop.json_size import TooLarge, size_of
from orl_rollout.loop.tool_schema import LONGEST_GIVEN, NoSchema, Schema

MOST_CALLS = 32  # in one action; what follows is answered by one failure
LONGEST_NAMES = 2_000  # characters of the tools' names in one message
LONGEST_LINE = 500  # characters of an answer, and of what is wrong with a schema
INLINE_SIZE = 8_000  # characters of an action's arguments that are checked on the event loop, and of small tools


class Toolbox:
    """The tools that the environment listed, by name. `large` ones take long to render.

    Raises:
        SessionError: a tool's `parameters` are not a JSON schema.
    """

    def __init__(self, tools: Sequence[ToolSpec]) -> None:
        self._schemas: dict[str, Schema] = {}
        size = 0
        for tool in tools:
            with boundary(SessionError, f"reading the schema of tool `{_short(tool.name)}`"):
                text = json.dumps(tool.parameters)
                size += len(text) + len(tool.description)
                try:
                    self._schemas[tool.name] = _schema(text)
                except NoSchema as exc:
                    what = f"tool `{_short(tool.name)}` has parameters that are not a JSON schema"
                    raise SessionError(f"{what}: {_line(str(exc))}") from exc
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
        checked = self._check_each(first) if _is_light(first) else await asyncio.to_thread(self._check_each, first)
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
            try:
                size_of(call.arguments)
                complaint = schema.complaint(call.arguments)
            except TooLarge as exc:
                complaint = f"the arguments are {exc}"
        if not complaint:
            return None
        message = _line(f"invalid arguments for `{call.name}` {complaint}")
        return ParseFailure(kind=FailureKind.INVALID_ARGUMENTS, name=call.name, message=message, id=call.id)


def _is_light(calls: Sequence[ToolCall | ParseFailure]) -> bool:
    """Tell whether the arguments of `calls` together are small enough to be checked on the event loop."""
    try:
        size_of([call.arguments for call in calls if isinstance(call, ToolCall)], INLINE_SIZE)
    except TooLarge:
        return False
    return True


def _short(text: str) -> str:
    return " ".join(text[:LONGEST_GIVEN].split())


def _line(text: str) -> str:
    return cut(" ".join(cut(text, 2 * LONGEST_LINE).split()), LONGEST_LINE)


@lru_cache(maxsize=256)
def _schema(text: str) -> Schema:
    """Return the schema of `text`, in JSON, which is made once for all episodes: it takes milliseconds."""
    return Schema(json.loads(text))
