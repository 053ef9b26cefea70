"""Calls that are JSON, for all formats that write them so.

For every format: arguments may be null if there are none, and may be an object written as a JSON string, which is
decoded once. A delimiter inside a JSON string is part of the string. `strict_json` says what counts as JSON. An array
is read element by element: the elements before a broken one count, and the broken one ends at the next delimiter, or
at the end of the text. A call is UNCLOSED if the text ends inside it.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, cast

from msgspec import Struct

from orl_core.messages import FailureKind, ParseFailure, ToolCall
from orl_core.tools.scan import Scan, one_line
from orl_core.tools.strict_json import NotJson, read_all, read_value, skip_space


class CallShape(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A format's way to write a call as JSON. `example` is such a call, for messages.

    `named` is the key of the tool's name, `numbered` that of the call's id. The first of `keys` that the object has
    holds the arguments. `stops` are the delimiters that end a call that cannot be read. Those in `closing` belong to
    it; `""` is the end of the text.
    """

    example: str = '{"name": "a_tool", "arguments": {}}'
    named: str = "name"
    numbered: str | None = None
    keys: tuple[str, ...] = ("arguments",)
    stops: Collection[str] = ()
    closing: tuple[str, ...] = ()


def read_body(scan: Scan, shape: CallShape, *, name: str = "", trailer: str = "") -> tuple[Any, str] | None:
    """Return the JSON value from here to the next stop, and its text. Record a failure without one.

    Go behind the stop if it closes the call, otherwise before it. `trailer` may follow the value.
    """
    start = end = scan.at
    value, fault = None, None
    try:
        value, end = read_value(scan.text, start)
    except NotJson as exc:
        fault = exc
    mark = scan.go(end, shape.stops)
    text = scan.text[start : scan.at].strip()
    rest = scan.text[end : scan.at].strip()
    if fault is None and rest not in {"", trailer}:
        fault = NotJson(f"text after the object at character {skip_space(scan.text, end) - start}")
    closed = ("" if mark is None else mark.delimiter) in shape.closing
    if closed and mark is not None:
        scan.pass_mark()
    if fault is None:
        return value, text
    complete = closed and not (mark is None and fault.cut)
    text = "" if closed and text == trailer else text or name  # no text: only the arguments are missing
    scan.calls.append(_broken(fault, text, shape, complete=complete, name=name))
    return None


def read_one(scan: Scan, shape: CallShape) -> None:
    """Read a block of one call."""
    if body := read_body(scan, shape):
        scan.calls.append(_call_of(*body, shape))


def read_named(scan: Scan, shape: CallShape, name: str, start: int, *, trailer: str = "") -> None:
    """Read the arguments of the call of `name`. Its text begins at `start`."""
    body = read_body(scan, shape, name=name, trailer=trailer)
    if body and name:
        scan.calls.append(named_call(name, *body, shape.example))
    elif body:
        scan.fail(FailureKind.MISSING_NAME, f"the tool call has no name; write {shape.example}", start)


def read_name(scan: Scan, separator: str, shape: CallShape) -> str | None:
    """Return the text before `separator`, and go behind it.

    Record a failure and return None if another delimiter or the end of the text comes first.
    """
    start = scan.at
    mark = scan.go(start, (*shape.stops, separator))
    name = scan.text[start : scan.at].strip()
    if mark is None:
        scan.fail(FailureKind.UNCLOSED, f"the tool call is not complete: it has no {separator}", start)
        return None
    if mark.delimiter != separator:
        message = f"the name of the tool call is not followed by {separator}; write {shape.example}"
        scan.fail(FailureKind.MALFORMED, message, start)
    if mark.delimiter in (separator, *shape.closing):
        scan.pass_mark()
    return name if mark.delimiter == separator else None


def read_calls(scan: Scan, shape: CallShape) -> None:
    """Read the next JSON array of calls, or one object alone; anything else is a failure."""
    if scan.text.startswith("[", skip_space(scan.text, scan.at)):
        read_array(scan, shape)
    else:
        read_object(scan, shape)


def read_object(scan: Scan, shape: CallShape) -> bool:
    """Read the next call, a JSON object; return whether it is JSON, and record a failure otherwise."""
    start = scan.at
    try:
        value, end = read_value(scan.text, start)
    except NotJson as exc:
        fail_json(scan, exc, start, shape)
        return False
    _add(scan, value, scan.text[start:end].strip(), shape)
    scan.jump(end)
    return True


def read_array(scan: Scan, shape: CallShape) -> None:
    """Read the next JSON array of calls, each on its own. A broken one ends the array at a stop."""
    text = scan.text
    place = skip_space(text, scan.at) + 1
    separator = ","
    while separator == ",":
        scan.at = place
        try:
            value, end = read_value(text, place)
            after = skip_space(text, end)
            separator = text[after : after + 1]
            if separator not in {"", ",", "]"}:
                raise NotJson(f"text after the object at character {after - place}")
        except NotJson as exc:
            fail_json(scan, exc, place, shape)
            return
        _add(scan, value, text[place:end].strip(), shape)
        scan.jump(after + len(separator))
        place = scan.at


def fail_json(scan: Scan, exc: NotJson, start: int, shape: CallShape, *, name: str = "") -> None:
    """Go to the next stop, or the end, and record that the call from `start` to there is not JSON."""
    scan.go(start, shape.stops)
    text = scan.text[start : scan.at].strip()
    scan.calls.append(_broken(exc, text, shape, complete=not exc.cut, name=name))


def _broken(exc: NotJson, text: str, shape: CallShape, *, complete: bool, name: str) -> ParseFailure:
    """Return the failure of a text that is not JSON, or that ends early."""
    if complete:
        kind, message = FailureKind.INVALID_JSON, f"the tool call is not valid JSON: {exc}; write {shape.example}"
    else:
        lacks = f"has no {shape.closing[0]} and " if shape.closing else ""
        kind, message = FailureKind.UNCLOSED, f"the tool call {lacks}is not complete: {exc}"
    return ParseFailure(kind=kind, message=one_line(message), text=text, name=name)


def _add(scan: Scan, value: Any, text: str, shape: CallShape) -> None:
    """Record the call that a JSON value makes, and its id."""
    scan.calls.append(_call_of(value, text, shape))
    if isinstance(value, dict):
        scan.give_id(cast("dict[Any, Any]", value).get(shape.numbered))


def _call_of(value: Any, text: str, shape: CallShape) -> ToolCall | ParseFailure:
    """Return the call that a JSON value makes.

    Arguments may be left out if the object has nothing but a name; other keys are ignored.
    """
    if not isinstance(value, dict):
        message = f"a tool call is one JSON object, not {_kind_of(value)}; write {shape.example}"
        return ParseFailure(kind=FailureKind.NOT_AN_OBJECT, message=message, text=text)
    members = cast("dict[str, Any]", value)
    name = members.get(shape.named)
    if not isinstance(name, str) or not name:
        message = f"the tool call has no `{shape.named}`; write {shape.example}"
        return ParseFailure(kind=FailureKind.MISSING_NAME, message=message, text=text)
    key = next((key for key in shape.keys if key in members), shape.keys[0])
    return named_call(name, members.get(key, {} if len(members) == 1 else ...), text, shape.example, key=key)


def named_call(
    name: str, arguments: Any, text: str, example: str, *, key: str = "arguments"
) -> ToolCall | ParseFailure:
    """Return the call of `name` with the arguments of a JSON value; `...` means that they are missing."""
    if isinstance(arguments, str):
        arguments = _decoded(arguments)
    if isinstance(arguments, dict | None):
        return ToolCall(name=name, arguments=cast("dict[str, Any]", arguments or {}))
    wrong = "are missing" if arguments is ... else f"must be a JSON object, not {_kind_of(arguments)}"
    message = one_line(f"the `{key}` of `{name}` {wrong}; write {example}")
    return ParseFailure(kind=FailureKind.NOT_AN_OBJECT, message=message, text=text, name=name)


def _decoded(arguments: str) -> Any:
    """Return the object that a string of JSON holds, or the string itself. An empty string holds no arguments."""
    if not arguments.strip():
        return {}
    try:
        value = read_all(arguments)
    except NotJson:
        return arguments
    return cast("dict[str, Any]", value) if isinstance(value, dict) else arguments


_KINDS: dict[type, str] = {bool: "a boolean", str: "a string", int: "a number", float: "a number", list: "an array"}


def _kind_of(value: Any) -> str:
    """Return the kind of a JSON value that is no object, in words for a message."""
    return _KINDS.get(cast("type[object]", type(value)), "null")
