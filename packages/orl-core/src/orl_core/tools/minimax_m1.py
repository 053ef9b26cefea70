"""The wire format of MiniMax-M1 and Hunyuan-A13B: calls in JSON between `<tool_calls>` and `</tool_calls>`.

M1 writes one object a line, `{"name": …, "arguments": {…}}`, Hunyuan one array of such objects; both are read. The
module must not know tools, schemas or tokens. What it decides where the formats are silent:

- Objects are read one by one: those before a broken one count, and the block ends there. It is UNCLOSED where the text
  ends inside an object, and INVALID_JSON elsewhere. A missing `</tool_calls>` after an object is no fault.
- A block with nothing in it, or with text behind its objects, is MALFORMED.
- A delimiter inside a JSON string is part of the string. `json_calls` says what arguments may be.
- Reasoning stands between `<think>` and `</think>`, or the end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from orl_core.messages import FailureKind
from orl_core.tools.json_calls import broken, call_of, read_array
from orl_core.tools.scan import THINKING, Scan, read
from orl_core.tools.strict_json import NotJson, read_value, skip_space

if TYPE_CHECKING:
    from orl_core.tools.marked import Marked
    from orl_core.tools.scan import Parsed

OPEN, CLOSE = "<tool_calls>", "</tool_calls>"
DELIMITERS = (OPEN, CLOSE, *THINKING)
EXAMPLE = '{"name": "a_tool", "arguments": {}}'
_STOPS = (OPEN, CLOSE)
_KEYS = ("arguments",)


def parse(marked: Marked, *, reasoning_opened: bool = False) -> Parsed:
    """Read everything in `marked`, in order. `reasoning_opened`: the prompt has already opened `<think>`."""
    return read(marked, {OPEN: _block}, reasoning_opened=reasoning_opened)


def _block(scan: Scan) -> None:
    scan.say_to_mark()
    found = len(scan.calls)
    if scan.text.startswith("[", skip_space(scan.text, scan.at)):
        read_array(scan, _STOPS, _KEYS, EXAMPLE)
    else:
        _objects(scan)
    start = scan.at
    mark = scan.go(start, _STOPS)
    stray = bool(scan.text[start : scan.at].strip())
    if stray or len(scan.calls) == found:
        kind = FailureKind.UNCLOSED if mark is None else FailureKind.MALFORMED
        scan.fail(kind, f"there is {'text' if stray else 'nothing'} where {EXAMPLE} should stand", start)
    if mark is not None and mark.delimiter == CLOSE:
        scan.pass_mark()


def _objects(scan: Scan) -> None:
    """Read the objects from here on, up to a broken one or what is none."""
    text = scan.text
    while text.startswith("{", place := skip_space(text, scan.at)):
        try:
            value, end = read_value(text, place)
        except NotJson as exc:
            scan.go(place, _STOPS)
            scan.calls.append(broken(str(exc), text[place : scan.at].strip(), EXAMPLE, closed=not exc.cut))
            return
        scan.calls.append(call_of(value, text[place:end], _KEYS, EXAMPLE))
        scan.jump(end)
