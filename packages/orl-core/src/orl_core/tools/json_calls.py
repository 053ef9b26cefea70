"""Calls that are JSON: the calls of a JSON value, and the failures of what is no call.

For every format: arguments may be null if there are none, and may be an object written as a JSON string, which is
decoded once. A delimiter inside a JSON string is part of the string. `strict_json` says what counts as JSON.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any, cast

from msgspec import Struct

from orl_core.messages import FailureKind, ParseFailure, ToolCall
from orl_core.tools.scan import one_line
from orl_core.tools.strict_json import NotJson, read_all, read_value, skip_space

if TYPE_CHECKING:
    from orl_core.tools.scan import Scan


class CallShape(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A format's way to write a call as one JSON object. `example` is such an object, or an array of it, for messages.

    `named` is the key of the tool's name. The first of `keys` that the object has holds the arguments. `stops` are the
    delimiters that end a call that cannot be read.
    """

    example: str
    named: str = "name"
    keys: tuple[str, ...] = ("arguments",)
    stops: Collection[str] = ()


class Body(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One JSON value and its text; `complaint` says why there is none, `cut` that the text ends inside it."""

    value: Any
    text: str
    complaint: str
    cut: bool
    closed: bool


def read_body(scan: Scan, stops: Collection[str], closing: Collection[str], *, trailer: str = "") -> Body:
    """Read the JSON value from here to the next of `stops`, or the end; `trailer` may stand after it.

    Go behind the stop if it is one of `closing`, otherwise before it.
    """
    start = end = scan.at
    value, complaint, cut = None, "", False
    try:
        value, end = read_value(scan.text, start)
    except NotJson as exc:
        complaint, cut = str(exc), exc.cut
    mark = scan.go(end, stops)
    text = scan.text[start : scan.at].strip()
    rest = scan.text[end : scan.at].strip()
    if not complaint and rest not in {"", trailer}:
        complaint = f"text after the object at character {skip_space(scan.text, end) - start}"
    closed = mark is not None and mark.delimiter in closing
    if closed:
        scan.pass_mark()
    return Body(value=value, text=text, complaint=complaint, cut=cut, closed=closed)


def add_named(scan: Scan, body: Body, name: str, start: int, *, missing: str, nameless: str) -> None:
    """Record the call of `name` with the arguments in `body`. `start` is where the text of the call begins.

    `missing` is the delimiter that should close it, `nameless` the message about an empty name.
    """
    if body.complaint:
        example = "one JSON object"
        scan.calls.append(broken(body.complaint, body.text, example, closed=body.closed, missing=missing, name=name))
    elif not name:
        scan.fail(FailureKind.MISSING_NAME, nameless, start)
    else:
        scan.calls.append(named_call(name, body.value, body.text, "the arguments as one JSON object"))


def read_name(scan: Scan, separator: str, stops: Collection[str], closing: str, *, named: str = "name") -> str | None:
    """Return the text before `separator`, and go behind it.

    Where another delimiter or the end comes first, record a failure and return None; `named` says what the text is.
    """
    start = scan.at
    mark = scan.go(start, (*stops, separator))
    name = scan.text[start : scan.at].strip()
    if mark is None:
        scan.fail(FailureKind.UNCLOSED, f"the tool call is not complete: it has no {separator}", start)
        return None
    if mark.delimiter != separator:
        scan.fail(FailureKind.MALFORMED, f"no {separator} follows the {named} of the tool call", start)
    if mark.delimiter in (separator, closing):
        scan.pass_mark()
    return name if mark.delimiter == separator else None


def read_calls(scan: Scan, shape: CallShape) -> None:
    """Read the JSON array of calls that stands here, or one object alone; anything else is a failure."""
    if scan.text.startswith("[", skip_space(scan.text, scan.at)):
        read_array(scan, shape)
    else:
        read_object(scan, shape)


def read_object(scan: Scan, shape: CallShape) -> bool:
    """Read the call that stands here as a JSON object; return whether it is JSON, and record a failure otherwise."""
    start = scan.at
    try:
        value, end = read_value(scan.text, start)
    except NotJson as exc:
        fail_json(scan, exc, start, shape)
        return False
    scan.calls.append(call_of(value, scan.text[start:end].strip(), shape))
    scan.jump(end)
    return True


def read_array(scan: Scan, shape: CallShape) -> None:
    """Read the JSON array of calls whose `[` stands here, each on its own: a broken one ends the array at a stop."""
    text = scan.text
    place = skip_space(text, scan.at) + 1
    while True:
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
        scan.calls.append(call_of(value, text[place:end].strip(), shape))
        scan.jump(after + len(separator))
        if separator != ",":
            return
        place = scan.at


def fail_json(scan: Scan, exc: NotJson, start: int, shape: CallShape, *, name: str = "") -> None:
    """Go to the next stop, or the end, and record that the call from `start` to there is not JSON."""
    scan.go(start, shape.stops)
    text = scan.text[start : scan.at].strip()
    scan.calls.append(broken(str(exc), text, shape.example, closed=not exc.cut, name=name))


def broken(complaint: str, text: str, example: str, *, closed: bool, missing: str = "", name: str = "") -> ParseFailure:
    """Return the failure of a body that is not JSON, or that ends early; `missing` is the closing that it lacks."""
    if closed:
        kind, message = FailureKind.INVALID_JSON, f"the tool call is not valid JSON: {complaint}; write {example}"
    else:
        lacks = f"has no {missing} and " if missing else ""
        kind, message = FailureKind.UNCLOSED, f"the tool call {lacks}is not complete: {complaint}"
    return ParseFailure(kind=kind, message=one_line(message), text=text, name=name)


def call_of(value: Any, text: str, shape: CallShape) -> ToolCall | ParseFailure:
    """Return the call that a JSON value makes.

    Arguments may be left out where the object has nothing but a name; other keys are ignored.
    """
    if not isinstance(value, dict):
        message = f"a tool call is one JSON object, not {kind_of(value)}; write {shape.example}"
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
    """Return the call of `name` with the arguments of a JSON value; `...` stands for arguments left out."""
    if arguments is None:
        arguments = {}
    if isinstance(arguments, str):
        arguments = _decoded(arguments)
    if isinstance(arguments, dict):
        return ToolCall(name=name, arguments=cast("dict[str, Any]", arguments))
    given = "left out" if arguments is ... else kind_of(arguments)
    message = one_line(f"the `{key}` of `{name}` must be a JSON object, they are {given}; write {example}")
    return ParseFailure(kind=FailureKind.NOT_AN_OBJECT, message=message, text=text, name=name)


def _decoded(arguments: str) -> Any:
    """Return the object that a string of JSON holds, or the string itself."""
    try:
        value = read_all(arguments)
    except NotJson:
        return arguments
    return cast("dict[str, Any]", value) if isinstance(value, dict) else arguments


def kind_of(value: Any) -> str:
    """Return the kind of a JSON value, in words for a message."""
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case str():
            return "a string"
        case int() | float():
            return "a number"
        case dict():
            return "an object"
        case _:
            return "an array"
