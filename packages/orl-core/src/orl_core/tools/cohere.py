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

from typing import TYPE_CHECKING

from orl_core.tools.json_calls import read_calls
from orl_core.tools.scan import Scan, dropped, read

if TYPE_CHECKING:
    from orl_core.tools.marked import Marked
    from orl_core.tools.scan import Parsed

ACTION, ACTION_END = "<|START_ACTION|>", "<|END_ACTION|>"
TEXT = ("<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>")
THINKING = ("<|START_THINKING|>", "<|END_THINKING|>")
DELIMITERS = (ACTION, ACTION_END, *TEXT, *THINKING)
EXAMPLE = '[{"tool_name": "a_tool", "parameters": {}}]'


def parse(marked: Marked, *, reasoning_opened: bool = False) -> Parsed:
    """Read everything in `marked`, in order. `reasoning_opened`: the prompt has opened `<|START_THINKING|>`."""
    readers = {ACTION: _action, ACTION_END: dropped}
    return read(marked, readers, reasoning_opened=reasoning_opened, thinking=THINKING, frames=TEXT)


def _action(scan: Scan) -> None:
    scan.say_to_mark()
    read_calls(scan, (ACTION, ACTION_END), ("parameters",), EXAMPLE, named="tool_name")
