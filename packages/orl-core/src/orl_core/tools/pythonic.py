"""Calls in Python's syntax (Llama 4, LFM2): `[a_tool(x=1, y="two"), another()]`.

It must not know tools, schemas or tokens, and evaluates nothing: `python_literal` reads the values. Llama 4 may put the
list between `<|python_start|>` and `<|python_end|>`, LFM2 puts it between `<|tool_call_start|>` and `…end|>`, where it
may also be a JSON array of `{"name": …, "arguments": {…}}`. What it decides where the format is silent:

- Without delimiters a text is calls where it, or what follows the reasoning, begins with `[` and `name(`; any other
  list is text. Between delimiters everything is meant to be a call. What follows a bare list is text; between
  delimiters it says that the last call was cut too early: it is MALFORMED, or UNCLOSED where no delimiter closes.
- Calls are read one by one: those before a broken one count, and the list ends there, at the next delimiter or the end.
  It is UNCLOSED where the text ends inside a call; a missing `]` after a complete call is no fault.
- Arguments are `name=literal`: a positional one, a name twice, or a value that is no literal is MALFORMED. A delimiter
  inside a string is part of the string. Reasoning stands between `<think>` and `</think>`, or the end.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from orl_core.messages import FailureKind, ToolCall
from orl_core.tools.json_calls import CallShape, read_array
from orl_core.tools.python_literal import NotLiteral, after_space, read_items, read_literal
from orl_core.tools.scan import Scan
from orl_core.tools.wire_format import THINKING, WireFormat, frame

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    ReadValue = Callable[[str, int], tuple[Any, int]]

START, END = "<|python_start|>", "<|python_end|>"
LFM_START, LFM_END = "<|tool_call_start|>", "<|tool_call_end|>"
EXAMPLE = "[a_tool(x=1)]"
STOPS = (START, END, LFM_START, LFM_END)
_BARE = re.compile(r"\s*+\[\s*+[A-Za-z_][\w.-]*+\s*+\(")
WORD = r"([^\s=,:()\[\]{}<'\"]++)"  # a name in a call: JSON schemas allow dashes, dots and more
_CALL = re.compile(rf"\s*+{WORD}\s*+\(")
_ARGUMENT = re.compile(rf"\s*+{WORD}\s*+=")
_JSON = re.compile(r"\s*+\[\s*+\{")
_SHAPE = CallShape(example='{"name": "a_tool", "arguments": {}}', keys=("arguments", "parameters"), stops=STOPS)


def _bare(scan: Scan) -> None:
    if _BARE.match(scan.text, scan.at):
        read_list(scan)


def read_block(scan: Scan, value: ReadValue = read_literal) -> None:
    """Read what an opening delimiter has opened: a list of calls in Python's syntax or in JSON."""
    if _JSON.match(scan.text, scan.at):
        read_array(scan, _SHAPE)
    elif scan.text.startswith("[", after_space(scan.text, scan.at)):
        start, known = scan.at, len(scan.calls)
        read_list(scan, value)
        _leftover(scan, start, known)
    else:
        start = scan.at
        mark = scan.go(start, STOPS)
        kind = FailureKind.UNCLOSED if mark is None else FailureKind.MALFORMED
        scan.fail(kind, f"the tool call is no list of calls: write {EXAMPLE}", start)


def _leftover(scan: Scan, start: int, known: int) -> None:
    """Refuse the last call of a list, `known` calls being older, where text stands behind `]`: it was cut too early."""
    following = (scan.marks[index] for index in range(scan.index, len(scan.marks)))
    mark = next((mark for mark in following if mark.delimiter in STOPS), None)
    rest = scan.text[scan.at : len(scan.text) if mark is None else mark.start].strip()
    if not rest or len(scan.calls) == known or not isinstance(call := scan.calls[-1], ToolCall):
        return
    scan.calls.pop()
    scan.go(scan.at, STOPS)
    closed = mark is not None and mark.delimiter in {END, LFM_END}
    kind = FailureKind.MALFORMED if closed else FailureKind.UNCLOSED
    scan.fail(kind, f"text stands behind the list of calls: {rest[:80]!r}; write {EXAMPLE}", start, name=call.name)


def read_list(scan: Scan, value: ReadValue = read_literal) -> None:
    """Read the calls of the list whose `[` stands here."""
    place = after_space(scan.text, scan.at) + 1
    while True:
        scan.at = place
        try:
            name, arguments, end = read_call(scan.text, place, value)
            end = after_space(scan.text, end)
            separator = scan.text[end : end + 1]
            if separator not in {"", ",", "]"}:
                raise NotLiteral("a comma or ] is missing after a call", scan.text, end)
        except NotLiteral as exc:
            fail_call(scan, exc, place, STOPS, EXAMPLE)
            return
        scan.calls.append(ToolCall(name=name, arguments=arguments))
        scan.jump(end + len(separator))
        place = after_space(scan.text, scan.at)
        if separator != ",":
            return
        if scan.text.startswith("]", place):  # a comma may stand after the last call
            scan.jump(place + 1)
            return


def read_call(text: str, place: int, value: ReadValue = read_literal) -> tuple[str, dict[str, Any], int]:
    """Return the name and the arguments of the call that stands at `place`, and the index after it.

    `value` reads one value at a place of the text.

    Raises:
        NotLiteral: there is none, or its arguments cannot be read.
    """
    found = _CALL.match(text, place)
    if found is None:
        raise NotLiteral("no name and ( begin a call", text, after_space(text, place))
    arguments, end = _arguments(text, found.end(), value)
    return found.group(1), arguments, end


def fail_call(scan: Scan, exc: NotLiteral, place: int, stops: Collection[str], example: str) -> None:
    """Record that the call at `place` cannot be read, and go to the next of `stops`, or the end."""
    found = _CALL.match(scan.text, place)
    scan.go(place, stops)
    kind = FailureKind.UNCLOSED if exc.cut else FailureKind.MALFORMED
    message = f"the tool call cannot be read: {exc}; write {example}"
    scan.fail(kind, message, place, name=found.group(1) if found else "")


def _arguments(text: str, place: int, value: ReadValue) -> tuple[dict[str, Any], int]:
    """Return the arguments after the opening parenthesis, and the index after the closing one.

    Raises:
        NotLiteral: they cannot be read.
    """
    arguments: dict[str, Any] = {}

    def argument(place: int) -> int:
        found = _ARGUMENT.match(text, place)
        if found is None:
            raise NotLiteral("arguments are written name=value", text, place)
        name = found.group(1)
        if name in arguments:
            raise NotLiteral(f"the argument `{name}` appears twice", text, place)
        arguments[name], end = value(text, found.end())
        return end

    return arguments, read_items(text, place, ")", argument)[0]


PYTHONIC = WireFormat(
    delimiters=(*STOPS, *THINKING),
    readers={START: read_block, LFM_START: read_block, END: frame, LFM_END: frame},
    bare=_bare,
)
