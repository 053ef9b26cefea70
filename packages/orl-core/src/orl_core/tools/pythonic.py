"""Calls in Python's syntax (Llama 4, LFM2): `[a_tool(x=1, y="two"), another()]`.

It must not know tools, schemas or tokens, and evaluates nothing: `python_literal` reads the values. Llama 4 may put the
list between `<|python_start|>` and `<|python_end|>`, LFM2 puts it between `<|tool_call_start|>` and `…end|>`, where it
may also be a JSON array of `{"name": …, "arguments": {…}}`. What it decides where the format is silent:

- Without delimiters a text is calls where it, or what follows the reasoning, begins with `[` and `name(`; any other
  list is text. Between delimiters everything is meant to be a call. What follows the list is text.
- Calls are read one by one: those before a broken one count, and the list ends there, at the next delimiter or the end.
  It is UNCLOSED where the text ends inside a call; a missing `]` after a complete call is no fault.
- Arguments are `name=literal`: a positional one, a name twice, or a value that is no literal is MALFORMED. A delimiter
  inside a string is part of the string. Reasoning stands between `<think>` and `</think>`, or the end.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from orl_core.messages import FailureKind, ToolCall
from orl_core.tools.json_calls import read_array
from orl_core.tools.python_literal import NotLiteral, after_space, read_literal
from orl_core.tools.scan import THINKING, Scan, dropped, read

if TYPE_CHECKING:
    from orl_core.tools.marked import Marked
    from orl_core.tools.scan import Parsed

START, END = "<|python_start|>", "<|python_end|>"
LFM_START, LFM_END = "<|tool_call_start|>", "<|tool_call_end|>"
DELIMITERS = (START, END, LFM_START, LFM_END, *THINKING)
EXAMPLE = "[a_tool(x=1)]"
_STOPS = (START, END, LFM_START, LFM_END)
_BARE = re.compile(r"\s*+\[\s*+[A-Za-z_][\w.-]*+\s*+\(")
_CALL = re.compile(r"\s*+([A-Za-z_][\w.-]*+)\s*+\(")
_ARGUMENT = re.compile(r"\s*+([A-Za-z_]\w*+)\s*+=")
_JSON = re.compile(r"\s*+\[\s*+\{")


def parse(marked: Marked, *, reasoning_opened: bool = False) -> Parsed:
    """Everything in `marked`, in order. `reasoning_opened`: the prompt has already opened `<think>`."""
    readers = {START: _between, LFM_START: _between, END: dropped, LFM_END: dropped}
    return read(marked, readers, reasoning_opened=reasoning_opened, bare=_bare)


def _bare(scan: Scan) -> None:
    if _BARE.match(scan.text, scan.at):
        _list(scan)


def _between(scan: Scan) -> None:
    scan.say_to_mark()
    if _JSON.match(scan.text, scan.at):
        read_array(scan, _STOPS, ("arguments", "parameters"), '{"name": "a_tool", "arguments": {}}')
    elif scan.text.startswith("[", after_space(scan.text, scan.at)):
        _list(scan)
    else:
        start = scan.at
        mark = scan.go(start, _STOPS)
        kind = FailureKind.UNCLOSED if mark is None else FailureKind.MALFORMED
        scan.fail(kind, f"the tool call is no list of calls: write {EXAMPLE}", start)


def _list(scan: Scan) -> None:
    """The calls of the list whose `[` stands here."""
    place = after_space(scan.text, scan.at) + 1
    while True:
        scan.at = place
        name = ""
        try:
            found = _CALL.match(scan.text, place)
            if found is None:
                raise NotLiteral("no name and ( begin a call", scan.text, after_space(scan.text, place))
            name = found.group(1)
            arguments, end = _arguments(scan.text, found.end())
            end = after_space(scan.text, end)
            separator = scan.text[end : end + 1]
            if separator not in {"", ",", "]"}:
                raise NotLiteral("a comma or ] is missing after a call", scan.text, end)
        except NotLiteral as exc:
            scan.go(place, _STOPS)
            kind = FailureKind.UNCLOSED if exc.cut else FailureKind.MALFORMED
            scan.fail(kind, f"the tool call cannot be read: {exc}; write {EXAMPLE}", place, name=name)
            return
        scan.calls.append(ToolCall(name=name, arguments=arguments))
        scan.jump(end + len(separator))
        place = after_space(scan.text, scan.at)
        if separator != ",":
            return
        if scan.text.startswith("]", place):  # a comma may stand after the last call
            scan.jump(place + 1)
            return


def _arguments(text: str, place: int) -> tuple[dict[str, Any], int]:
    """The arguments after the opening parenthesis, and the index after the closing one.

    Raises:
        NotLiteral: they cannot be read.
    """
    arguments: dict[str, Any] = {}
    comma = True
    while True:
        place = after_space(text, place)
        if text.startswith(")", place):
            return arguments, place + 1
        found = _ARGUMENT.match(text, place)
        if found is None or not comma:
            wrong = "arguments are written name=value" if comma else "a comma or ) is missing"
            raise NotLiteral(wrong, text, place)
        name = found.group(1)
        if name in arguments:
            raise NotLiteral(f"the argument `{name}` appears twice", text, place)
        arguments[name], place = read_literal(text, found.end())
        place = after_space(text, place)
        comma = text.startswith(",", place)
        place += comma
