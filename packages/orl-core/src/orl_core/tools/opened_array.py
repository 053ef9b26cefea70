"""JSON arrays behind a delimiter: `<|tool_call|>[…]` (Granite 3), `<TOOLCALL>[…]</TOOLCALL>` (Nemotron Nano v2).

It must not know tools, schemas or tokens. Granite 3 may put `<tool_call>` in place of `<|tool_call|>`: it is not read,
because Hermes writes one object behind it. What it decides where the formats are silent:

- An array is read element by element: those before a broken one count, and the broken one ends the array, at the next
  delimiter or the end. One object without the array is a call too. What follows the array is text.
- It is UNCLOSED where the text ends inside it; a missing `]` or `</TOOLCALL>` after a complete call is no fault.
- Reasoning stands between `<think>` and `</think>`, or the end. `json_calls` says what arguments may be.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from orl_core.tools.json_calls import read_calls
from orl_core.tools.scan import THINKING, Scan, dropped, read

if TYPE_CHECKING:
    from orl_core.tools.marked import Marked
    from orl_core.tools.scan import Parsed

GRANITE, NEMOTRON, NEMOTRON_END = "<|tool_call|>", "<TOOLCALL>", "</TOOLCALL>"
DELIMITERS = (GRANITE, NEMOTRON, NEMOTRON_END, *THINKING)
EXAMPLE = '[{"name": "a_tool", "arguments": {}}]'


def parse(marked: Marked, *, reasoning_opened: bool = False) -> Parsed:
    """Read everything in `marked`, in order. `reasoning_opened`: the prompt has already opened `<think>`."""
    readers = {GRANITE: _array, NEMOTRON: _array, NEMOTRON_END: dropped}
    return read(marked, readers, reasoning_opened=reasoning_opened)


def _array(scan: Scan) -> None:
    scan.say_to_mark()
    read_calls(scan, (GRANITE, NEMOTRON, NEMOTRON_END), ("arguments",), EXAMPLE)
