"""The wire format of Gemma 4: `<|tool_call>call:NAME{key:<|"|>text<|"|>,key:1,…}<tool_call|>`.

It must not know tools, schemas or tokens. Strings stand between two `<|"|>`, which is a token of its own, so that they
need no escapes; keys stand bare, other values as in JSON. What it decides where the format is silent:

- A key may stand between `<|"|>` too, and null may be written `None`, as earlier templates write it.
- A call is complete with its closing brace, closed or not. A delimiter inside a string is part of the string. Where a
  call is broken, it ends at the next `<|tool_call>` or `<tool_call|>`. It is UNCLOSED where the text ends inside it.
- Refused are a bare string, a key twice, numbers out of range and nesting deeper than MAX_DEPTH.
- Reasoning stands between `<|channel>`, with the channel's name `thought`, and `<channel|>`, or the end.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from msgspec import structs

from orl_core.messages import FailureKind, ToolCall
from orl_core.tools.marked import Mark, Marked
from orl_core.tools.python_literal import NotLiteral, after_space, read_items, read_literal
from orl_core.tools.scan import Scan
from orl_core.tools.strict_json import MAX_DEPTH
from orl_core.tools.wire_format import WireFormat

if TYPE_CHECKING:
    from collections.abc import Sequence

OPEN, CLOSE, QUOTE = "<|tool_call>", "<tool_call|>", '<|"|>'
_THINKING = ("<|channel>", "<channel|>")
EXAMPLE = f"call:a_tool{{a_name:{QUOTE}its value{QUOTE}}}"
_NAME = re.compile(r"\s*+call:\s*+([^\s{}<,:]++(?:[:][^\s{}<,:]++)*+)?+\s*+(\{)?+")
_KEY = re.compile(r"\s*+([^\s:,{}\[\]<](?:[^:,{}\[\]<\n]*+))?+:")
_KEY_CUT = re.compile(r"[^:,{}\[\]<\n]*+")
_SCALAR = re.compile(r"[-+]?[0-9]|(?:true|false|null|None)\b")
_CHANNEL = re.compile(r"thought\s*+")


def _prepared(marked: Marked) -> Marked:
    """Add the name of a channel to the mark that opens it."""

    def named(mark: Mark) -> Mark:
        found = _CHANNEL.match(marked.text, mark.end) if mark.delimiter == _THINKING[0] else None
        return structs.replace(mark, end=found.end()) if found else mark

    return Marked(text=marked.text, marks=tuple(map(named, marked.marks)))


def _call(scan: Scan) -> None:
    start, first = scan.at, scan.index
    found = _NAME.match(scan.text, start)
    name = (found.group(1) or "") if found else ""
    try:
        if found is None or not found.group(2):
            raise NotLiteral("it does not begin with call:a_tool{", scan.text, found.end() if found else start)
        arguments, end = _Values(scan.text, scan.marks, first).object(found.end(), 1)
    except NotLiteral as exc:
        mark = scan.go(start, (OPEN, CLOSE))
        kind = FailureKind.UNCLOSED if exc.cut else FailureKind.MALFORMED
        scan.fail(kind, f"the tool call cannot be read: {exc}; write {EXAMPLE}", start, name=name)
        if mark is not None and mark.delimiter == CLOSE:
            scan.pass_mark()
        return
    mark = scan.go(end, (OPEN, CLOSE))
    closed = mark is not None and mark.delimiter == CLOSE
    if scan.text[end : scan.at].strip():
        kind = FailureKind.MALFORMED if closed else FailureKind.UNCLOSED
        scan.fail(kind, f"text stands between the arguments of `{name}` and {CLOSE}", start, name=name)
    elif name:
        scan.calls.append(ToolCall(name=name, arguments=arguments))
    else:
        scan.fail(FailureKind.MISSING_NAME, f"the tool call has no name: write {EXAMPLE}", start)
    if closed:
        scan.pass_mark()


class _Values:
    """Reads values from a text on; `index` is the first mark that is not passed."""

    def __init__(self, text: str, marks: Sequence[Mark], index: int) -> None:
        self._text = text
        self._marks = marks
        self._index = index

    def object(self, place: int, depth: int) -> tuple[dict[str, Any], int]:
        """Return the members after an opening brace, and the index after the closing one.

        Raises:
            NotLiteral: they cannot be read.
        """
        members: dict[str, Any] = {}

        def member(place: int) -> int:
            key, place = self._key(place)
            if key in members:
                raise NotLiteral(f"the key `{key}` appears twice", self._text, place)
            members[key], place = self._value(place, depth)
            return place

        return members, read_items(self._text, place, "}", member, trailing=False)[0]

    def _list(self, place: int, depth: int) -> tuple[list[Any], int]:
        items: list[Any] = []

        def item(place: int) -> int:
            value, end = self._value(place, depth)
            items.append(value)
            return end

        return items, read_items(self._text, place, "]", item, trailing=False)[0]

    def _key(self, place: int) -> tuple[str, int]:
        """Return a key, and the index after its colon."""
        if self._quoted(place):
            key, place = self._string()
            place = after_space(self._text, place)
            if not self._text.startswith(":", place):
                raise NotLiteral("a colon is missing after a key", self._text, place)
            return key, place + 1
        found = _KEY.match(self._text, place)
        if found is None or found.group(1) is None:
            cut = _KEY_CUT.fullmatch(self._text, place) is not None
            raise NotLiteral("members are written key:value", self._text, len(self._text) if cut else place)
        return found.group(1).rstrip(), found.end()

    def _value(self, place: int, depth: int) -> tuple[Any, int]:
        place = after_space(self._text, place)
        if self._quoted(place):
            return self._string()
        first = self._text[place : place + 1]
        if first and first in "{[":
            if depth == MAX_DEPTH:
                raise NotLiteral(f"nested deeper than {MAX_DEPTH} levels", self._text, place)
            inside = self.object if first == "{" else self._list
            return inside(place + 1, depth + 1)
        if _SCALAR.match(self._text, place):
            return read_literal(self._text, place)
        raise NotLiteral(f"a string stands between two {QUOTE}, other values are as in JSON", self._text, place)

    def _quoted(self, place: int) -> bool:
        """Return whether a `<|"|>` stands here; go to it."""
        while self._index < len(self._marks) and self._marks[self._index].start < place:
            self._index += 1
        if self._index == len(self._marks):
            return False
        mark = self._marks[self._index]
        return mark.start == place and mark.delimiter == QUOTE

    def _string(self) -> tuple[str, int]:
        """Return the string whose `<|"|>` is the next mark, and the index after its second one."""
        start = self._marks[self._index].end
        self._index += 1
        while self._index < len(self._marks):
            mark = self._marks[self._index]
            self._index += 1
            if mark.delimiter == QUOTE:
                return self._text[start : mark.start], mark.end
        raise NotLiteral(f"a string does not end with {QUOTE}", self._text, len(self._text))


GEMMA4 = WireFormat(
    delimiters=(OPEN, CLOSE, QUOTE, *_THINKING), thinking=_THINKING, readers={OPEN: _call}, prepared=_prepared
)
