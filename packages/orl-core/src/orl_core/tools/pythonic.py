"""Calls in Python's syntax: Llama 4, LFM2 and LFM2.5, Olmo 3.

    pythonic   `[a_tool(x=1, y="two"), another()]`, between `<|python_start|>` and `<|python_end|>`, or LFM2's
               `<|tool_call_start|>` and `…end|>`, there also as a JSON array of calls, or without delimiters
    lfm2_5     the same between LFM2's delimiters, but a single-quoted string has no escapes
    olmo3      `<function_calls>a_tool(x=1, y="two")⏎another()</function_calls>`

It must not know tools, schemas or tokens; `python_literal` reads the values. What it decides if the formats are silent:

- Without delimiters a text is calls if it, or what follows the reasoning, begins with `[` and `name(`; any other list
  is text. Between delimiters everything is meant to be a call. What follows a bare list is text; between delimiters it
  says that the last call was cut too early: it is MALFORMED, or UNCLOSED if no delimiter closes.
- Calls are read one by one: those before a broken one count, and the list ends there, at the next delimiter or the end.
  It is UNCLOSED if the text ends inside a call; a missing `]` or closing delimiter after a whole call is no fault.
- Arguments are `name=literal`: a positional one, a name twice, or a value that is no literal is MALFORMED. A delimiter
  inside a string is part of the string.
- Olmo 3 writes each call on a line; a comma or white space between two calls is read too. A block is not empty.
- LFM2.5's templates print a string between single quotes as it is, so that quotes, backslashes and line breaks inside
  are part of it. It ends at a quote that the next argument or the end of the call follows, and before the next
  delimiter: one that holds `', name=` or `')]` is cut there. Other strings have Python's escapes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

from orl_core.messages import FailureKind, ToolCall
from orl_core.names import ToolFormat
from orl_core.tools.format import Spelling, array, json_of, writer
from orl_core.tools.json_calls import CallShape, read_array
from orl_core.tools.python_literal import read_literal, unread
from orl_core.tools.scan import Scan
from orl_core.tools.strict_json import NotJson, skip_space
from orl_core.tools.wire_format import THINKING, WireFormat, frame

_ReadValue = Callable[[str, int], tuple[Any, int]]

_START, _END = "<|python_start|>", "<|python_end|>"
_LFM_START, _LFM_END = "<|tool_call_start|>", "<|tool_call_end|>"
_OLMO = ("<function_calls>", "</function_calls>")
_STOPS = (_START, _END, _LFM_START, _LFM_END)
_EXAMPLE = "[a_tool(x=1)]"
_BARE = re.compile(r"\s*+\[\s*+[A-Za-z_][\w.-]*+\s*+\(")
_WORD = r"([^\s=,:()\[\]{}<'\"]++)"  # a name in a call: JSON schemas allow dashes, dots and more
_CALL = re.compile(rf"\s*+{_WORD}\s*+\(")
_ARGUMENT = re.compile(rf"\s*+{_WORD}\s*+=")
_JSON = re.compile(r"\s*+\[\s*+\{")
_SHAPE = CallShape(keys=("arguments", "parameters"), stops=_STOPS)
# The end of a string of LFM2.5.
_QUOTE = re.compile(rf"'(?=\s*+(?:,\s*+{_WORD}\s*+=|\)\s*+(?:\]|\Z|,\s*+(?:\Z|{_WORD}\s*+(?:\(|\Z)))))")


def _read_block(scan: Scan, value: _ReadValue = read_literal) -> None:
    """Read what an opening delimiter has opened: a list of calls in Python's syntax or in JSON."""
    start, known = scan.at, len(scan.calls)
    if _JSON.match(scan.text, start):
        read_array(scan, _SHAPE)
    elif scan.text.startswith("[", skip_space(scan.text, start)):
        _read_list(scan, value)
        _refuse_rest(scan, start, known)
    else:
        mark = scan.go(start, _STOPS)
        kind = FailureKind.UNCLOSED if mark is None else FailureKind.MALFORMED
        scan.fail(kind, f"the tool call is not a list of calls; write {_EXAMPLE}", start)


def _refuse_rest(scan: Scan, start: int, known: int) -> None:
    """Refuse the last call of a list, `known` calls being older, if text follows `]`: it was cut too early."""
    following = (scan.marks[index] for index in range(scan.index, len(scan.marks)))
    mark = next((mark for mark in following if mark.delimiter in _STOPS), None)
    rest = scan.text[scan.at : len(scan.text) if mark is None else mark.start].strip()
    if not rest or len(scan.calls) == known or not isinstance(call := scan.calls[-1], ToolCall):
        return
    scan.calls.pop()
    scan.go(scan.at, _STOPS)
    closed = mark is not None and mark.delimiter in {_END, _LFM_END}
    kind = FailureKind.MALFORMED if closed else FailureKind.UNCLOSED
    scan.fail(kind, f"unexpected text after the list of calls: {rest[:80]!r}; write {_EXAMPLE}", start, name=call.name)


def _read_list(scan: Scan, value: _ReadValue = read_literal) -> None:
    """Read the calls of the next list."""
    place, separator = skip_space(scan.text, scan.at) + 1, ","
    while separator == ",":
        scan.at = place
        try:
            call, end = _read_call(scan.text, place, value)
            end = skip_space(scan.text, end)
            separator = scan.text[end : end + 1]
            if separator not in {"", ",", "]"}:
                raise unread("a comma or ] is missing after a call", scan.text, end)
        except NotJson as exc:
            _fail(scan, exc, place, _STOPS, _EXAMPLE)
            return
        scan.calls.append(call)
        scan.jump(end + len(separator))
        place = skip_space(scan.text, scan.at)
        if separator == "," and scan.text.startswith("]", place):  # a comma may follow the last call
            scan.jump(place + 1)
            return


def _read_call(text: str, place: int, value: _ReadValue = read_literal) -> tuple[ToolCall, int]:
    """Return the call at `place`, and the index after it. `value` reads one value at a place of the text."""
    match = _CALL.match(text, place)
    if match is None:
        raise unread("a call does not begin with a name and (", text, skip_space(text, place))
    arguments: dict[str, Any] = {}
    place, comma = skip_space(text, match.end()), True
    while not text.startswith(")", place):
        if not comma:
            raise unread("a comma or ) is missing", text, place)
        argument = _ARGUMENT.match(text, place)
        if argument is None:
            raise unread("arguments are written name=value", text, place)
        if argument[1] in arguments:
            raise NotJson(f"the argument `{argument[1]}` appears twice")
        arguments[argument[1]], place = value(text, argument.end())
        place = skip_space(text, place)
        comma = text.startswith(",", place)
        place = skip_space(text, place + comma)
    return ToolCall(name=match[1], arguments=arguments), place + 1


def _fail(scan: Scan, exc: NotJson, place: int, stops: Collection[str], example: str) -> None:
    """Record that the call at `place` cannot be read, and go to the next of `stops`, or the end."""
    match = _CALL.match(scan.text, place)
    scan.go(place, stops)
    kind = FailureKind.UNCLOSED if exc.cut else FailureKind.MALFORMED
    message = f"the tool call cannot be read: {exc}; write {example}"
    scan.fail(kind, message, place, name=match[1] if match else "")


def _read_lfm2_5(scan: Scan) -> None:
    following = (scan.marks[index] for index in range(scan.index, len(scan.marks)))
    bound = next((mark.start for mark in following if mark.delimiter in _STOPS), len(scan.text))

    def value(text: str, start: int) -> tuple[Any, int]:
        place = skip_space(text, start)
        if not text.startswith("'", place):
            return read_literal(text, start)
        match = _QUOTE.search(text, place + 1, bound)
        if match is None:
            raise NotJson("a string does not end", cut=bound == len(text))
        return text[place + 1 : match.start()], match.end()

    _read_block(scan, value)


def _read_olmo3(scan: Scan) -> None:
    while True:
        start = scan.at
        try:
            call, end = _read_call(scan.text, start)
        except NotJson as exc:
            _fail(scan, exc, start, _OLMO, "a_tool(x=1)")
            return
        scan.calls.append(call)
        scan.jump(end)
        place = skip_space(scan.text, end)
        if scan.text.startswith(",", place):
            place = skip_space(scan.text, place + 1)
        ended = place == len(scan.text)
        if ended or (scan.index < len(scan.marks) and scan.marks[scan.index].start <= place):
            return
        scan.jump(place)


def _lfm_text(value: Any) -> str:
    return f"'{value}'" if isinstance(value, str) else repr(value)


FORMATS: Mapping[ToolFormat, WireFormat] = {
    "pythonic": WireFormat(
        delimiters=(*_STOPS, *THINKING),
        spelling=Spelling(
            write=writer("[%(name)s(%(arguments)s)]", "%(key)s=%(value)s", ", ", repr),
            show=array("<|tool_list_start|>", "<|tool_list_end|>"),
            families=("lfm2",),
        ),
        readers={_START: _read_block, _LFM_START: _read_block, _END: frame, _LFM_END: frame},
        bare=(_BARE, _read_list),
        closings={_END: _START, _LFM_END: _LFM_START},
        call_ends_reasoning=False,
    ),
    "lfm2_5": WireFormat(
        delimiters=(_LFM_START, _LFM_END, *THINKING),
        spelling=Spelling(
            write=writer(f"{_LFM_START}[%(name)s(%(arguments)s)]{_LFM_END}", "%(key)s=%(value)s", ", ", _lfm_text),
            show=array("", ""),
            families=("lfm2.5",),
        ),
        readers={_LFM_START: _read_lfm2_5, _LFM_END: frame},
        closings={_LFM_END: _LFM_START},
        call_ends_reasoning=False,
    ),
    "olmo3": WireFormat(
        delimiters=(*_OLMO, *THINKING),
        spelling=Spelling(
            write=writer(f"{_OLMO[0]}%(name)s(%(arguments)s){_OLMO[1]}", "%(key)s=%(value)s", ", ", json_of),
            show=array("<functions>", "</functions>", bare=True),
            families=("olmo-3",),
            examples=((_OLMO[0],),),
        ),
        readers={_OLMO[0]: _read_olmo3, _OLMO[1]: frame},
        closings={_OLMO[1]: _OLMO[0]},
        call_ends_reasoning=False,
    ),
}
