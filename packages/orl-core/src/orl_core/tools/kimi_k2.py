"""The wire format of Kimi K2: `<|tool_call_begin|>functions.NAME:0<|tool_call_argument_begin|>{…}<|tool_call_end|>`.

It must not know tools, schemas or tokens. What it decides where the format is silent:

- The section's delimiters frame calls and are not asked for. A call's number, and `functions.`, may be missing.
- A call is complete with its JSON, closed or not. A delimiter inside a JSON string is part of the string; where the
  JSON is broken the call ends at the next delimiter of a call. `json_calls` says what arguments may be.
- Reasoning stands between `<think>` and `</think>`, or the end; a call inside it does not count.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from orl_core.messages import FailureKind
from orl_core.tools.json_calls import broken, named_call, read_body
from orl_core.tools.scan import THINKING, Scan, dropped, read

if TYPE_CHECKING:
    from orl_core.tools.marked import Marked
    from orl_core.tools.scan import Parsed

SECTION, SECTION_END = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
CALL, CALL_END, ARGUMENTS = "<|tool_call_begin|>", "<|tool_call_end|>", "<|tool_call_argument_begin|>"
DELIMITERS = (SECTION, SECTION_END, CALL, CALL_END, ARGUMENTS, *THINKING)
_STOPS = (CALL, CALL_END, SECTION_END)
_NUMBER = re.compile(r":[0-9]+\Z")


def parse(marked: Marked, *, reasoning_opened: bool = False) -> Parsed:
    """Everything in `marked`, in order. `reasoning_opened`: the prompt has already opened `<think>`."""
    readers = {CALL: _call, SECTION: dropped, SECTION_END: dropped}
    return read(marked, readers, reasoning_opened=reasoning_opened)


def _call(scan: Scan) -> None:
    scan.say_to_mark()
    start = scan.at
    mark = scan.go(start, (*_STOPS, ARGUMENTS))
    name = _NUMBER.sub("", scan.text[start : scan.at].strip().removeprefix("functions."))
    if mark is None:
        scan.fail(FailureKind.UNCLOSED, f"the tool call is not complete: it has no {ARGUMENTS}", start)
        return
    if mark.delimiter != ARGUMENTS:
        scan.fail(FailureKind.MALFORMED, f"no {ARGUMENTS} follows the id of the tool call", start)
        if mark.delimiter == CALL_END:
            scan.pass_mark()
        return
    scan.pass_mark()
    body = read_body(scan, _STOPS, (CALL_END,))
    if body.complaint:
        failure = broken(body.complaint, body.text, "one JSON object", closed=body.closed, missing=CALL_END, name=name)
        scan.calls.append(failure)
    elif not name:
        scan.fail(FailureKind.MISSING_NAME, "the tool call has no name: write functions.a_tool:0", start)
    else:
        scan.calls.append(named_call(name, body.value, body.text, "the arguments as one JSON object"))
