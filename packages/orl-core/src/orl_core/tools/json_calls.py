"""Calls that are JSON, and the table of the formats that write nothing else.

For every format: arguments may be null if there are none, and may be an object written as a JSON string, which is
decoded once. A delimiter inside a JSON string is part of the string. `strict_json` says what counts as JSON. An array
is read element by element: the elements before a broken one count, and the broken one ends at the next delimiter, or
at the end of the text. A call is UNCLOSED if the text ends inside it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, cast

from msgspec import Struct, structs

from orl_core.messages import FailureKind, ParseFailure, ToolCall
from orl_core.names import ToolFormat
from orl_core.tools.scan import Mark, Marked, Scan, one_line
from orl_core.tools.strict_json import NotJson, read_all, read_value, skip_space
from orl_core.tools.wire_format import THINKING, WireFormat, bare, frame


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
    """Return the JSON value from here to the next stop, and its text. Record a failure if there is none.

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
    """Read the arguments of the call of `name`, whose text begins at `start`."""
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


def _read_block(scan: Scan, shape: CallShape) -> None:
    """Read a block of one array, or of objects. A block is MALFORMED if it is empty or holds other text."""
    known = len(scan.calls)
    if scan.text.startswith("[", skip_space(scan.text, scan.at)):
        read_array(scan, shape)
    else:
        while scan.text.startswith("{", place := skip_space(scan.text, scan.at)):
            scan.jump(place)
            if not read_object(scan, shape):
                break
    start = scan.at
    mark = scan.go(start, shape.stops)
    stray = scan.text[start : scan.at].strip()
    if stray or len(scan.calls) == known:
        kind = FailureKind.UNCLOSED if mark is None else FailureKind.MALFORMED
        what = "unexpected text in the block of tool calls" if stray else "the block of tool calls is empty"
        scan.fail(kind, f"{what}; write {shape.example}", start)
    if mark is not None and mark.delimiter in shape.closing:
        scan.pass_mark()


_LLAMA_TAG = "<|python_tag|>"
_LLAMA_TEXT = ("<|python_start|>", "<|python_end|>")
_LLAMA_OBJECT = "{"  # the delimiter of the marks without width that `_llama_prepared` adds
_LLAMA = CallShape(
    example='{"name": "a_tool", "parameters": {}}', keys=("parameters", "arguments"), stops=(_LLAMA_TAG,)
)
_LLAMA_CALL = re.compile(r'\s*+;?+\s*+(?=\{\s*+"(?:name|type)"\s*+:)')
_LLAMA_AFTER_TEXT = re.compile(r'\{\s*+"name"\s*+:\s*+"(?:[^"\\]++|\\.)++"\s*+,\s*+"parameters"\s*+:', re.DOTALL)
_LLAMA_NEXT = re.compile(rf"\s*+;\s*+(?=\{{)|{_LLAMA_CALL.pattern}")


def _llama_prepared(marked: Marked) -> Marked:
    """Mark the objects that are calls behind text."""
    places = [match.start() for match in _LLAMA_AFTER_TEXT.finditer(marked.text)]
    objects = [Mark(start=place, end=place, delimiter=_LLAMA_OBJECT) for place in places]
    return Marked(text=marked.text, marks=tuple(sorted((*marked.marks, *objects), key=lambda mark: mark.start)))


def _read_llama(scan: Scan) -> None:
    """Read objects until something else follows."""
    while read_object(scan, _LLAMA) and (following := _LLAMA_NEXT.match(scan.text, scan.at)):
        scan.jump(following.end())


_KIMI_NUMBER = re.compile(r":[0-9]+\Z")
_KIMI_ARGUMENTS = "<|tool_call_argument_begin|>"


def _read_kimi(scan: Scan, shape: CallShape) -> None:
    start = scan.at
    written = read_name(scan, _KIMI_ARGUMENTS, shape)
    if written is not None:
        read_named(scan, shape, _KIMI_NUMBER.sub("", written.removeprefix("functions.")), start)
        scan.give_id(written)


def _format(
    shape: CallShape,
    read: Callable[[Scan, CallShape], object],
    opens: Sequence[str],
    *,
    frames: Sequence[str] = (),
    text_frames: Collection[str] = (),
    thinking: tuple[str, str] = THINKING,
) -> WireFormat:
    """Return a format whose calls `read` reads behind one of `opens`. `frames` are others, the last one closes."""

    def reader(scan: Scan) -> None:
        read(scan, shape)

    return WireFormat(
        delimiters=tuple(dict.fromkeys((*shape.stops, *frames, *text_frames, *thinking))),
        thinking=thinking,
        text_frames=text_frames,
        readers={**dict.fromkeys(opens, reader), **dict.fromkeys(frames, frame)},
        closings=dict.fromkeys((*shape.closing, *frames[-1:]), opens[-1]),
    )


_ARRAY = '[{"name": "a_tool", "arguments": {}}]'
_XLAM = CallShape(example=_ARRAY, keys=("arguments", "parameters"))
_XLAM_CALLS = re.compile(r'\s*+\[\s*+\{\s*+"(?:name|arguments)"\s*+:')
_COHERE_TEXT = ("<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>")
FORMATS: Mapping[ToolFormat, WireFormat] = {
    # Qwen2.5, Qwen3, Hermes: `<tool_call>{"name": …, "arguments": {…}}</tool_call>`. A block is a call when its object
    # is complete, closed or not: a stop token may come in place of `</tool_call>`.
    "hermes": _format(
        CallShape(stops=("<tool_call>", "</tool_call>"), closing=("</tool_call>",)), read_one, ["<tool_call>"]
    ),
    # MiniMax-M1 writes one object a line in its block, Hunyuan-A13B one array.
    "minimax_m1": _format(
        CallShape(stops=("<tool_calls>", "</tool_calls>"), closing=("</tool_calls>",)), _read_block, ["<tool_calls>"]
    ),
    # Granite 3: `<|tool_call|>[…]`; Nemotron Nano v2: `<TOOLCALL>[…]</TOOLCALL>`. What follows the array is text.
    "opened_array": structs.replace(
        _format(
            CallShape(example=_ARRAY, stops=("<|tool_call|>", "<TOOLCALL>", "</TOOLCALL>")),
            read_calls,
            ["<|tool_call|>", "<TOOLCALL>"],
            frames=["</TOOLCALL>"],
        ),
        call_ends_reasoning=False,
    ),
    # Command R7B, Command A, Cohere 2 MoE: `<|START_ACTION|>[…]<|END_ACTION|>`.
    "cohere": _format(
        CallShape(
            example='[{"tool_name": "a_tool", "parameters": {}}]',
            named="tool_name",
            numbered="tool_call_id",
            keys=("parameters",),
            stops=("<|START_ACTION|>", "<|END_ACTION|>"),
        ),
        read_calls,
        ["<|START_ACTION|>"],
        frames=["<|END_ACTION|>"],
        text_frames=_COHERE_TEXT,
        thinking=("<|START_THINKING|>", "<|END_THINKING|>"),
    ),
    # xLAM: a bare array whose first value is an object that begins with `name` or `arguments`. Any other is text.
    "json_array": WireFormat(delimiters=THINKING, bare=bare(partial(read_array, shape=_XLAM), _XLAM_CALLS)),
    # Llama 3.1 to 3.3 and 4: objects, joined by `;` or white space, behind `<|python_tag|>`, or at the start of the
    # text and after reasoning, or behind text if they begin with `name` and `parameters`. Any other object is text.
    # Llama 4's own template has the text between two delimiters.
    "llama3": WireFormat(
        delimiters=(_LLAMA_TAG, *_LLAMA_TEXT, *THINKING),
        text_frames=_LLAMA_TEXT,
        readers={_LLAMA_TAG: _read_llama, _LLAMA_OBJECT: _read_llama},
        bare=bare(_read_llama, _LLAMA_CALL),
        prepared=_llama_prepared,
        call_ends_reasoning=False,
    ),
    # `<|tool_call_begin|>functions.NAME:0<|tool_call_argument_begin|>{…}<|tool_call_end|>`. The number and `functions.`
    # may be missing.
    "kimi_k2": _format(
        CallShape(
            example="functions.a_tool:0, then its arguments as one JSON object",
            stops=("<|tool_call_begin|>", _KIMI_ARGUMENTS, "<|tool_call_end|>", "<|tool_calls_section_end|>"),
            closing=("<|tool_call_end|>",),
        ),
        _read_kimi,
        ["<|tool_call_begin|>"],
        frames=["<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"],
    ),
}
