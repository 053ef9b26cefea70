"""The wire format of Olmo 3: `<function_calls>a_tool(x=1, y="two")⏎another()</function_calls>`.

It must not know tools, schemas or tokens, and evaluates nothing. A call is written as in `pythonic`, its values as in
JSON; Python's spellings are read too. What it decides where the format is silent:

- Calls stand on lines of their own; a comma or white space between two calls is read too. A block is not empty.
- Calls are read one by one: those before a broken one count, and the block ends there, at its next delimiter or the
  end. It is UNCLOSED where the text ends inside a call; a missing `</function_calls>` after a whole call is no fault.
- Reasoning stands between `<think>` and `</think>`, or the end.
"""

from __future__ import annotations

from orl_core.messages import ToolCall
from orl_core.tools.python_literal import NotLiteral, after_space
from orl_core.tools.pythonic import fail_call, read_call
from orl_core.tools.scan import Scan
from orl_core.tools.wire_format import THINKING, WireFormat, frame

OPEN, CLOSE = "<function_calls>", "</function_calls>"


def _block(scan: Scan) -> None:
    while True:
        start = scan.at
        try:
            name, arguments, end = read_call(scan.text, start)
        except NotLiteral as exc:
            fail_call(scan, exc, start, (OPEN, CLOSE), "a_tool(x=1)")
            return
        scan.calls.append(ToolCall(name=name, arguments=arguments))
        scan.jump(end)
        place = after_space(scan.text, end)
        if scan.text.startswith(",", place):
            place = after_space(scan.text, place + 1)
        ended = place == len(scan.text)
        if ended or (scan.index < len(scan.marks) and scan.marks[scan.index].start <= place):
            return
        scan.jump(place)


OLMO3 = WireFormat(delimiters=(OPEN, CLOSE, *THINKING), readers={OPEN: _block, CLOSE: frame})
