"""The wire format of Kimi K2: `<|tool_call_begin|>functions.NAME:0<|tool_call_argument_begin|>{…}<|tool_call_end|>`.

It must not know tools, schemas or tokens. What it decides where the format is silent:

- The section's delimiters frame calls and are not asked for. A call's number, and `functions.`, may be missing.
- A call is complete with its JSON, closed or not. A delimiter inside a JSON string is part of the string; where the
  JSON is broken the call ends at the next delimiter of a call. `json_calls` says what arguments may be.
- Reasoning stands between `<think>` and `</think>`, or the end; a call inside it does not count.
"""

from __future__ import annotations

import re

from orl_core.tools.json_calls import add_named, read_body, read_name
from orl_core.tools.scan import Scan
from orl_core.tools.wire_format import THINKING, WireFormat, frame

SECTION, SECTION_END = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
CALL, CALL_END, ARGUMENTS = "<|tool_call_begin|>", "<|tool_call_end|>", "<|tool_call_argument_begin|>"
_STOPS = (CALL, CALL_END, SECTION_END)
_NUMBER = re.compile(r":[0-9]+\Z")


def _call(scan: Scan) -> None:
    start = scan.at
    written = read_name(scan, ARGUMENTS, _STOPS, CALL_END, named="id")
    if written is not None:
        name, body = _NUMBER.sub("", written.removeprefix("functions.")), read_body(scan, _STOPS, (CALL_END,))
        nameless = "the tool call has no name: write functions.a_tool:0"
        add_named(scan, body, name, start, missing=CALL_END, nameless=nameless)


KIMI_K2 = WireFormat(
    delimiters=(SECTION, SECTION_END, CALL, CALL_END, ARGUMENTS, *THINKING),
    readers={CALL: _call, SECTION: frame, SECTION_END: frame},
)
