"""Calls that are JSON: what a value must be to make a call, and how a JSON body is read out of a scan.

Decided once for every format that writes JSON: arguments may be null where there are none, and may be an object written
as a JSON string, which is decoded once; `strict_json` says what counts as JSON. A delimiter inside a JSON string is
part of the string. It must not know which delimiters a format has.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from msgspec import Struct

from orl_core.messages import FailureKind, ParseFailure, ToolCall
from orl_core.tools.scan import one_line
from orl_core.tools.strict_json import NotJson, read_all, read_value, skip_space

if TYPE_CHECKING:
    from collections.abc import Collection

    from orl_core.tools.scan import Scan


class Body(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One JSON value and its text; `complaint` says why there is none, `cut` that the text ends inside it."""

    value: Any
    text: str
    complaint: str
    cut: bool
    closed: bool


def read_body(scan: Scan, stops: Collection[str], closing: Collection[str], *, trailer: str = "") -> Body:
    """The JSON value from here to the next of `stops`, or the end; `trailer` may stand after it.

    Goes behind the stop where it is one of `closing`, otherwise before it.
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


def read_calls(scan: Scan, stops: Collection[str], keys: tuple[str, ...], example: str, *, named: str = "name") -> None:
    """Read the JSON array of calls that stands here, or one object alone; anything else is a failure."""
    if scan.text.startswith("[", skip_space(scan.text, scan.at)):
        read_array(scan, stops, keys, example, named=named)
        return
    start = scan.at
    try:
        value, end = read_value(scan.text, start)
    except NotJson as exc:
        scan.go(start, stops)
        scan.calls.append(broken(str(exc), scan.text[start : scan.at].strip(), example, closed=not exc.cut))
        return
    scan.jump(end)
    scan.calls.append(call_of(value, scan.text[start:end].strip(), keys, example, named=named))


def read_array(scan: Scan, stops: Collection[str], keys: tuple[str, ...], example: str, *, named: str = "name") -> None:
    """The calls of a JSON array whose `[` stands here, each on its own: a broken one ends the array at a stop."""
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
            scan.go(place, stops)
            scan.calls.append(broken(str(exc), text[place : scan.at].strip(), example, closed=not exc.cut))
            return
        scan.calls.append(call_of(value, text[place:end].strip(), keys, example, named=named))
        scan.jump(after + len(separator))
        if separator != ",":
            return
        place = scan.at


def broken(complaint: str, text: str, example: str, *, closed: bool, missing: str = "", name: str = "") -> ParseFailure:
    """The failure of a body that is not JSON, or that ends before it is; `missing` is the closing that it lacks."""
    if closed:
        kind, message = FailureKind.INVALID_JSON, f"the tool call is not valid JSON: {complaint}; write {example}"
    else:
        lacks = f"has no {missing} and " if missing else ""
        kind, message = FailureKind.UNCLOSED, f"the tool call {lacks}is not complete: {complaint}"
    return ParseFailure(kind=kind, message=one_line(message), text=text, name=name)


def call_of(
    value: Any, text: str, keys: tuple[str, ...], example: str, *, named: str = "name"
) -> ToolCall | ParseFailure:
    """The call that an object with a name, under `named`, and, under the first of `keys` that it has, arguments makes.

    Arguments may be left out where the object has nothing but a name; other keys are ignored.
    """
    if not isinstance(value, dict):
        message = f"a tool call is one JSON object, not {kind_of(value)}; write {example}"
        return ParseFailure(kind=FailureKind.NOT_AN_OBJECT, message=message, text=text)
    members = cast("dict[str, Any]", value)
    name = members.get(named)
    if not isinstance(name, str) or not name:
        message = f"the tool call has no `{named}`; write {example}"
        return ParseFailure(kind=FailureKind.MISSING_NAME, message=message, text=text)
    key = next((key for key in keys if key in members), keys[0])
    return named_call(name, members.get(key, {} if len(members) == 1 else ...), text, example, key=key)


def named_call(
    name: str, arguments: Any, text: str, example: str, *, key: str = "arguments"
) -> ToolCall | ParseFailure:
    """The call of `name` with these arguments, which a JSON value gave; `...` stands for arguments left out."""
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
    """The object that a string of JSON holds, or the string itself."""
    try:
        value = read_all(arguments)
    except NotJson:
        return arguments
    return cast("dict[str, Any]", value) if isinstance(value, dict) else arguments


def kind_of(value: Any) -> str:
    """A JSON value's kind, in words for a message."""
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
