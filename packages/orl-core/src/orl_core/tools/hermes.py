"""The hermes wire format (Qwen2.5, Qwen3, Hermes): `<tool_call>{"name": …, "arguments": {…}}</tool_call>`.

It must not know tools, schemas or tokens. The parser is total and reads once from left to right: any marked text gives
text, reasoning, calls and typed failures in order, and never an exception. What it decides where the format is silent:

- A block is a call when its JSON object is complete, closed or not: a stop token may stand where `</tool_call>` should.
  A block that ends without its closing tag and is not complete is UNCLOSED.
- A delimiter inside a JSON string is part of the string. Where the JSON is broken, the block ends at the next tag.
- `arguments` may be left out where the object has nothing but a name, may be null, and may be an object written as a
  JSON string, which is decoded once. Keys beside `name` and `arguments` are ignored.
- `strict_json` says what counts as JSON: duplicate keys, NaN, overflowing numbers and deep nesting do not.
- Reasoning stands between `<think>` and `</think>`, or the end; a call inside it does not count. A closing tag that
  closes nothing is text.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from orl_core.messages import Action, FailureKind, ParseFailure, Span, ToolCall
from orl_core.tools.strict_json import NotJson, read_value, skip_space

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orl_core.tools.marked import Mark, Marked

OPEN, CLOSE = "<tool_call>", "</tool_call>"
THINK, THOUGHT = "<think>", "</think>"
DELIMITERS = (OPEN, CLOSE, THINK, THOUGHT)
EXAMPLE = '{"name": "a_tool", "arguments": {}}'


def parse(marked: Marked, *, reasoning_opened: bool = False) -> Action:
    """Everything in `marked`, in order. `reasoning_opened`: the prompt has already opened `<think>`.

    Text and reasoning are stripped of white space at their ends, parts of them are joined by a newline.
    """
    return read(marked, reasoning_opened=reasoning_opened)[0]


def read(marked: Marked, *, reasoning_opened: bool = False) -> tuple[Action, tuple[Span, ...]]:
    """What `parse` gives, and where in the text its reasoning and its calls stand."""
    text, marks = marked.text, marked.marks
    spoken: list[str] = []
    thought: list[str] = []
    calls: list[ToolCall | ParseFailure] = []
    spans: list[Span] = []
    at = index = 0
    if reasoning_opened:
        at, index = _reasoning(text, marks, at, index, thought)
        spans.append(Span(part="reasoning", start=0, end=at))
    while index < len(marks):
        mark = marks[index]
        if mark.delimiter == THINK:
            spoken.append(text[at : mark.start])
            at, index = _reasoning(text, marks, mark.end, index + 1, thought)
            spans.append(Span(part="reasoning", start=mark.start, end=at))
        elif mark.delimiter == OPEN:
            spoken.append(text[at : mark.start])
            call, at, index = _block(text, marks, mark.end, index + 1)
            calls.append(call)
            spans.append(Span(part="calls", start=mark.start, end=at))
        else:
            index += 1
    spoken.append(text[at:])
    return Action(text=_joined(spoken), reasoning=_joined(thought), calls=tuple(calls)), tuple(spans)


def _joined(parts: Sequence[str]) -> str:
    return "\n".join(stripped for part in parts if (stripped := part.strip()))


def _reasoning(text: str, marks: Sequence[Mark], at: int, index: int, thought: list[str]) -> tuple[int, int]:
    """Read reasoning that begins at `at`; the place after it and the first mark there."""
    while index < len(marks) and marks[index].delimiter != THOUGHT:
        index += 1
    closed = index < len(marks)
    thought.append(text[at : marks[index].start if closed else len(text)])
    return (marks[index].end, index + 1) if closed else (len(text), index)


def _block(text: str, marks: Sequence[Mark], at: int, index: int) -> tuple[ToolCall | ParseFailure, int, int]:
    """Read the block whose body begins at `at`; what it is, the place after it, and the first mark there."""
    try:
        value, end = read_value(text, at)
        complaint = ""
    except NotJson as exc:
        value, end, complaint = None, at, str(exc)
    while index < len(marks) and (marks[index].start < end or marks[index].delimiter not in {OPEN, CLOSE}):
        index += 1
    stop = marks[index].start if index < len(marks) else len(text)
    closed = index < len(marks) and marks[index].delimiter == CLOSE
    body = text[at:stop].strip()
    rest = text[end:stop].lstrip()
    if not complaint and rest:
        complaint = f"text after the object at character {skip_space(text, end) - at}"
    call = _broken(body, complaint, closed=closed) if complaint else _call(value, body)
    return (call, marks[index].end, index + 1) if closed else (call, stop, index)


def _broken(body: str, complaint: str, *, closed: bool) -> ParseFailure:
    if closed:
        message = f"the tool call is not valid JSON: {complaint}; write {EXAMPLE}"
        return ParseFailure(kind=FailureKind.INVALID_JSON, message=message, text=body)
    message = f"the tool call has no {CLOSE} and is not complete: {complaint}"
    return ParseFailure(kind=FailureKind.UNCLOSED, message=message, text=body)


def _call(value: Any, body: str) -> ToolCall | ParseFailure:
    """The call that a JSON value makes, or why it makes none."""
    if not isinstance(value, dict):
        message = f"a tool call is one JSON object, not {_kind(value)}; write {EXAMPLE}"
        return ParseFailure(kind=FailureKind.NOT_AN_OBJECT, message=message, text=body)
    members = cast("dict[str, Any]", value)
    name = members.get("name")
    if not isinstance(name, str) or not name:
        message = f"the tool call has no `name`; write {EXAMPLE}"
        return ParseFailure(kind=FailureKind.MISSING_NAME, message=message, text=body)
    arguments = members.get("arguments", {} if len(members) == 1 else ...)
    if arguments is None:
        arguments = {}
    if isinstance(arguments, str):
        arguments = _decoded(arguments)
    if isinstance(arguments, dict):
        return ToolCall(name=name, arguments=cast("dict[str, Any]", arguments))
    given = "left out" if arguments is ... else _kind(arguments)
    message = f"the `arguments` of `{name}` must be a JSON object, they are {given}; write {EXAMPLE}"
    return ParseFailure(kind=FailureKind.NOT_AN_OBJECT, message=message, text=body, name=name)


def _decoded(arguments: str) -> Any:
    """The object that a string of JSON holds, or the string itself."""
    try:
        value, end = read_value(arguments, 0)
    except NotJson:
        return arguments
    whole = isinstance(value, dict) and skip_space(arguments, end) == len(arguments)
    return cast("dict[str, Any]", value) if whole else arguments


def _kind(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case str():
            return "a string"
        case int() | float():
            return "a number"
        case _:
            return "an array"
