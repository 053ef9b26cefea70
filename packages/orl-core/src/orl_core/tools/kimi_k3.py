"""The wire format of Kimi K3: elements between control tokens, `<|open|>NAME key="…"<|sep|>…<|close|>NAME<|sep|>`.

An action is `think`, then `response`, then `tools`; the prompt opens the first of them that the action has:

    <|open|>tools<|sep|><|open|>call tool="NAME" index="1"<|sep|>
    <|open|>argument key="x" type="number"<|sep|>1<|close|>argument<|sep|><|close|>call<|sep|><|close|>tools<|sep|>

The module must not know tools, schemas or tokens. The checkpoint publishes an encoder in Python and no template. It
escapes `&` and `"` in attributes, and nothing in values. `tagged` reads the calls. Where the encoder is silent:

- An argument of type `string`, or of no type, is its text. Any other type is strict JSON, whatever type it states.
- One `json` element may hold all arguments, as one JSON object. The attribute `index` is the id of a call.
- `response` and `message` frame text and belong to no part. Unknown elements are text, and MALFORMED inside a call.
- `<|end_of_msg|>`, and any element that holds text or reasoning, end a call: it is UNCLOSED.
"""

from __future__ import annotations

import json
import re
from functools import partial

from orl_core.messages import ToolCall
from orl_core.tools.format import Spelling, text_of
from orl_core.tools.scan import Mark, Marked, Scan
from orl_core.tools.tagged import Kind, Tag, TagSyntax
from orl_core.tools.typed import JSON_TYPES
from orl_core.tools.wire_format import WireFormat

OPEN, CLOSE, SEPARATOR, END = "<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>"
_THINKING = (f"{OPEN}think{SEPARATOR}", f"{CLOSE}think{SEPARATOR}")
TOOLS = f"{OPEN}tools{SEPARATOR}"
_FRAMES = frozenset({END, f"{CLOSE}tools{SEPARATOR}"}).union(
    f"{edge}{name}{SEPARATOR}" for edge in (OPEN, CLOSE) for name in ("response", "message")
)
_KINDS: dict[str, Kind] = {
    **dict.fromkeys((*_FRAMES, *_THINKING, TOOLS), "open"),  # what ends a call from outside
    f"{CLOSE}tools{SEPARATOR}": "close",
    f"{OPEN}call{SEPARATOR}": "call",
    f"{CLOSE}call{SEPARATOR}": "called",
    f"{OPEN}argument{SEPARATOR}": "key",
    f"{CLOSE}argument{SEPARATOR}": "value end",
    f"{OPEN}json{SEPARATOR}": "key",
    f"{CLOSE}json{SEPARATOR}": "value end",
}
_NAME = re.compile(r"[\w-]*+")
_ATTRIBUTE = re.compile(r"""(?<![\w-])([\w-]++)="([^"]*+)\"""")


def _elements(marked: Marked) -> Marked:
    """Join each edge of an element with its header and separator to one mark.

    An edge after which the text ends is text. Other control tokens stay marks of their own.
    """
    marks: list[Mark] = []
    waiting: Mark | None = None
    for mark in marked.marks:
        if waiting is not None and mark.delimiter == SEPARATOR:
            name = _NAME.match(marked.text, waiting.end, mark.start)
            delimiter = f"{waiting.delimiter}{name.group() if name else ''}{SEPARATOR}"
            marks.append(Mark(start=waiting.start, end=mark.end, delimiter=delimiter))
            waiting = None
            continue
        if waiting is not None:
            marks.append(waiting)
        waiting = mark if mark.delimiter in {OPEN, CLOSE} else None
        if waiting is None:
            marks.append(mark)
    return Marked(text=marked.text, marks=tuple(marks))


def _tag(scan: Scan, mark: Mark) -> Tag:
    kind = _KINDS.get(mark.delimiter)
    if kind not in {"call", "key"}:
        return Tag(kind=kind or "key", start=mark.start, end=mark.end)
    attributes = {key: _unescaped(value) for key, value in _ATTRIBUTE.findall(scan.text, mark.start, mark.end)}
    whole = mark.delimiter == f"{OPEN}json{SEPARATOR}"
    return Tag(
        kind=kind,
        start=mark.start,
        end=mark.end,
        name="json" if whole else attributes.get("tool" if kind == "call" else "key", ""),
        is_json=whole or attributes.get("type", "string") != "string",
        is_body=whole,
        id=attributes.get("index", "") if kind == "call" else "",
    )


def _unescaped(value: str) -> str:
    return value.replace("&quot;", '"').replace("&amp;", "&")


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace('"', "&quot;")


def _write(call: ToolCall) -> str:
    arguments = [
        f'{OPEN}argument key="{_escaped(key)}" type="{_TYPES[type(value)]}"{SEPARATOR}'
        f"{text_of(value)}{CLOSE}argument{SEPARATOR}"
        for key, value in call.arguments.items()
    ]
    opening = f'{TOOLS}{OPEN}call tool="{_escaped(call.name)}" index="1"{SEPARATOR}'
    return f"{opening}{''.join(arguments)}{CLOSE}call{SEPARATOR}{CLOSE}tools{SEPARATOR}"


_TYPES: dict[type[object], str] = JSON_TYPES | {int: "number", float: "number"}
_SYNTAX = TagSyntax(
    tag=_tag,
    call=f'{OPEN}call tool="a_tool" index="1"{SEPARATOR}',
    called=f"{CLOSE}call{SEPARATOR}",
    key=f'{OPEN}argument key="a_name" type="string"{SEPARATOR}',
    value_end=f"{CLOSE}argument{SEPARATOR}",
    block=TOOLS,
)

KIMI_K3 = WireFormat(
    delimiters=(OPEN, CLOSE, SEPARATOR, END),
    spelling=Spelling(
        write=_write,
        show=partial(json.dumps, ensure_ascii=False, sort_keys=True, separators=(",", ":")),
        examples=((f"{OPEN}call",),),
    ),
    thinking=_THINKING,
    blocks={TOOLS: _SYNTAX},
    text_frames=_FRAMES,
    prepared=_elements,
)
