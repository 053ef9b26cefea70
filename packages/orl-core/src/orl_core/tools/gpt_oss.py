"""Harmony, the wire format of gpt-oss: `<|channel|>NAME to=RECIPIENT <|constrain|>json<|message|>BODY<|call|>`.

It must not know tools, schemas or tokens. An action is one message or several; the first has no `<|start|>assistant`,
which the prompt holds. What it decides where the format is silent:

- A message with a recipient is a call, on whatever channel, the recipient before the channel or after it; the name is
  the recipient without `functions.`. Without a recipient, `analysis` is reasoning and every other channel is text.
- A call is complete with its JSON, closed or not: the renderer takes a final `<|call|>` off. It is UNCLOSED where the
  text ends inside the JSON. A delimiter inside a JSON string is part of the string.
- A message that is no call ends at its tag, or where the next header begins.
- A header without a `<|message|>`, and text between messages or before a header, is text.
- `json_calls` says what arguments may be.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from orl_core.errors import RenderError
from orl_core.tools.format import Specs, Spelling, writer
from orl_core.tools.json_calls import CallShape, read_named
from orl_core.tools.scan import Mark, Marked, Parsed, Scan
from orl_core.tools.wire_format import WireFormat

START, CHANNEL, CONSTRAIN, MESSAGE = "<|start|>", "<|channel|>", "<|constrain|>", "<|message|>"
END, CALL, RETURN = "<|end|>", "<|call|>", "<|return|>"
_THINKING = (f"{CHANNEL}analysis{MESSAGE}", END)
_STOPS = (START, END, CALL, RETURN)
_CLOSING = (CALL, END, RETURN)
_SHAPE = CallShape(
    example="to=functions.a_tool, then its arguments as one JSON object", stops=_STOPS, closing=(*_CLOSING, "")
)  # the renderer takes a final `<|call|>` off
_RECIPIENT = re.compile(r"(?:^|\s)to=([^\s<]*+)")


class _Harmony(WireFormat, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Read messages by their headers, in place of one delimiter for each kind of part."""

    def within(self, frame: WireFormat) -> WireFormat:
        raise RenderError("tool format `gpt_oss` is the form of a whole action: no other model can be taught its calls")

    def parse(self, marked: Marked, offered: frozenset[str], *, reasoning_opened: bool) -> Parsed:
        del offered
        scan = Scan(marked)
        if reasoning_opened:
            _body(scan, "analysis", None)
        while scan.index < len(scan.marks):
            _message(scan)
        return scan.parsed()


def _message(scan: Scan) -> None:
    """Read one message from its header on; without a `<|message|>` the rest of the text."""
    index = begin = scan.index
    while index < len(scan.marks) and scan.marks[index].delimiter != MESSAGE:
        if scan.marks[index].delimiter in _STOPS:
            begin = index
        index += 1
    if index == len(scan.marks):
        scan.index = index
        return
    if scan.marks[begin].delimiter in _STOPS:  # text before the header
        scan.say(scan.marks[begin].start)
        scan.jump(scan.marks[begin].end)
    recipient: str | None = None
    channel, part, place = "", "", scan.at
    for mark in scan.marks[scan.index : index + 1]:
        words = scan.text[place : mark.start]
        if match := _RECIPIENT.search(words):
            recipient = match.group(1)
        if part == CHANNEL:
            channel = next(iter(words.split()), "")
        elif not part and (spoken := _RECIPIENT.sub("", words).strip().removeprefix("assistant")):
            scan.said.append(spoken)
            scan.begin = mark.start
        part, place = mark.delimiter, mark.end
    scan.jump(place)
    _body(scan, channel, recipient)


def _body(scan: Scan, channel: str, recipient: str | None) -> None:
    start = scan.at
    if recipient is not None:
        read_named(scan, _SHAPE, recipient.removeprefix("functions."), start)
        scan.tell("calls")
        return
    mark = scan.go(start, (*_STOPS, CHANNEL))
    end, scan.at = scan.at, start
    thinks = channel == "analysis"
    if thinks:
        scan.think(end)
    else:
        scan.say(end)
    if mark is not None and mark.delimiter in _CLOSING:
        scan.pass_mark()
    if thinks:
        scan.tell("reasoning")
    else:
        scan.begin = scan.at


def _headers(marked: Marked) -> Marked:
    """Join each header to one mark: `_THINKING[0]` opens reasoning, MESSAGE opens text.

    It is for calls of another format; harmony's own reader looks into the headers.
    """
    marks: list[Mark] = []
    header: Mark | None = None
    for mark in marked.marks:
        if header is not None and mark.delimiter == MESSAGE:
            channel = marked.text[header.start : mark.start].rpartition(CHANNEL)[2].split()[:1]
            delimiter = _THINKING[0] if channel == ["analysis"] else MESSAGE
            marks.append(Mark(start=header.start, end=mark.end, delimiter=delimiter))
            header = None
        elif mark.delimiter in {START, CHANNEL, CONSTRAIN}:
            header = header or mark
        else:
            marks.append(mark)
            header = None
    return Marked(text=marked.text, marks=tuple(marks))


_SCALARS = {"string": "string", "number": "number", "integer": "number", "boolean": "boolean", "object": "object"}
_INDENT = "\n" + " " * 16  # what the template prints before the type of a member


def _typescript(specs: Specs) -> str:
    """Return the namespace in TypeScript that declares the tools."""
    functions = "".join(_function(spec["function"]) for spec in specs)
    return f"namespace functions {{\n\n{functions}}} // namespace functions"


def _function(function: Mapping[str, Any]) -> str:
    parameters: dict[str, Any] = function["parameters"] or {}
    properties: dict[str, Any] = parameters.get("properties") or {}
    lines: list[str] = []
    for name, spec in properties.items():
        comment = f"// {spec['description']}\n" if spec.get("description") else ""
        lines.append(f"{comment}{_named(name, parameters)}: {_type(spec)},\n")
    taken = f"_: {{\n{''.join(lines)}}}" if lines else ""
    return f"// {function['description']}\ntype {function['name']} = ({taken}) => any;\n\n"


def _named(name: str, parent: Mapping[str, Any]) -> str:
    return name if name in (parent.get("required") or ()) else f"{name}?"


def _type(spec: Mapping[str, Any]) -> str:
    """Return the TypeScript type of a schema."""
    match kind := spec.get("type"):
        case "array":
            return f"{_elements(spec.get('items'))}[]"
        case "string" if spec.get("enum"):
            return '"' + '" | "'.join(map(str, spec["enum"])) + '"'
        case "object" if spec.get("properties"):
            members = (f"{_named(name, spec)}: {_INDENT}{_type(one)}" for name, one in spec["properties"].items())
            return "{\n" + ", ".join(members) + "}"
        case _:
            return _SCALARS.get(str(kind), "any")


def _elements(items: Any) -> str:
    if not items:
        return "any"
    if (scalar := items.get("type")) in ("string", "number", "integer", "boolean"):
        return _SCALARS[scalar]
    inner = _type(items)
    return "any" if inner == "object | object" or len(inner) > 50 else inner


GPT_OSS = _Harmony(
    delimiters=(START, CHANNEL, CONSTRAIN, MESSAGE, END, CALL, RETURN),
    spelling=Spelling(
        write=writer(f"{CHANNEL}commentary to=functions.%(name)s {CONSTRAIN}json{MESSAGE}%(json)s{CALL}"),
        show=_typescript,
    ),
    thinking=_THINKING,
    text_frames=(MESSAGE, END, CALL, RETURN),
    prepared=_headers,
)
