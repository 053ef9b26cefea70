"""Cohere's wire format (Command R7B, Command A, Cohere 2 MoE): `<|START_ACTION|>[{"tool_name": …}, …]<|END_ACTION|>`.

It must not know tools, schemas or tokens. A call's arguments stand under `parameters`, its `tool_call_id` is ignored.
Command R7B puts text between `<|START_RESPONSE|>` and `<|END_RESPONSE|>`, Cohere 2 MoE between `<|START_TEXT|>` and
`<|END_TEXT|>`; both only frame it. What it decides where the format is silent:

- An action is an array, read element by element: those before a broken one count, and the broken one ends the array, at
  the next of the action's delimiters or the end. One object without the array is a call too.
- It is UNCLOSED where the text ends inside it; a missing `]` or `<|END_ACTION|>` after a complete call is no fault.
- Reasoning stands between `<|START_THINKING|>` and `<|END_THINKING|>`, or the end. `json_calls` says what arguments may
  be.
"""

from __future__ import annotations

from functools import partial

from orl_core.tools.json_calls import CallShape, read_calls
from orl_core.tools.wire_format import WireFormat, frame

ACTION, ACTION_END = "<|START_ACTION|>", "<|END_ACTION|>"
_TEXT = ("<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>")
_THINKING = ("<|START_THINKING|>", "<|END_THINKING|>")
_SHAPE = CallShape(
    example='[{"tool_name": "a_tool", "parameters": {}}]',
    named="tool_name",
    keys=("parameters",),
    stops=(ACTION, ACTION_END),
)

COHERE = WireFormat(
    delimiters=(ACTION, ACTION_END, *_TEXT, *_THINKING),
    thinking=_THINKING,
    readers={ACTION: partial(read_calls, shape=_SHAPE), ACTION_END: frame},
    text_frames=_TEXT,
)
