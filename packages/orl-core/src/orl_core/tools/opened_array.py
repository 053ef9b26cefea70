"""JSON arrays behind a delimiter: `<|tool_call|>[…]` (Granite 3), `<TOOLCALL>[…]</TOOLCALL>` (Nemotron Nano v2).

It must not know tools, schemas or tokens. Granite 3 may put `<tool_call>` in place of `<|tool_call|>`: it is not read,
because Hermes writes one object behind it. What it decides where the formats are silent:

- An array is read element by element: those before a broken one count, and the broken one ends the array, at the next
  delimiter or the end. One object without the array is a call too. What follows the array is text.
- It is UNCLOSED where the text ends inside it; a missing `]` or `</TOOLCALL>` after a complete call is no fault.
- Reasoning stands between `<think>` and `</think>`, or the end. `json_calls` says what arguments may be.
"""

from __future__ import annotations

from functools import partial

from orl_core.tools.json_calls import CallShape, read_calls
from orl_core.tools.wire_format import THINKING, WireFormat, frame

GRANITE, NEMOTRON, NEMOTRON_END = "<|tool_call|>", "<TOOLCALL>", "</TOOLCALL>"
_STOPS = (GRANITE, NEMOTRON, NEMOTRON_END)
_array = partial(read_calls, shape=CallShape(example='[{"name": "a_tool", "arguments": {}}]', stops=_STOPS))

OPENED_ARRAY = WireFormat(
    delimiters=(*_STOPS, *THINKING), readers={GRANITE: _array, NEMOTRON: _array, NEMOTRON_END: frame}
)
