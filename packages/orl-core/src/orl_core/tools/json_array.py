"""The wire format of xLAM: a bare JSON array of calls, `[{"name": …, "arguments": {…}}, …]`.

It must not know tools, schemas or tokens. No delimiter opens a call. What it decides where the format is silent:

- A text is calls where it, or what follows the reasoning, begins with an array whose first value is an object with
  `name` or `arguments` as its first key. Any other array is an answer in JSON, and text.
- What follows the array is text. Elements are read one by one: those before a broken one count, and the rest of the
  text belongs to that one. It is UNCLOSED where the text ends inside it.
- Arguments stand under `arguments`, or under `parameters` where there are none. `json_calls` says what they may be.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from orl_core.tools.json_calls import read_array
from orl_core.tools.scan import THINKING, Scan, read

if TYPE_CHECKING:
    from orl_core.tools.marked import Marked
    from orl_core.tools.scan import Parsed

DELIMITERS = THINKING
EXAMPLE = '[{"name": "a_tool", "arguments": {}}]'
_ARRAY = re.compile(r'\s*+\[\s*+\{\s*+"(?:name|arguments)"\s*+:')


def parse(marked: Marked, *, reasoning_opened: bool = False) -> Parsed:
    """Read everything in `marked`, in order. `reasoning_opened`: the prompt has already opened `<think>`."""
    return read(marked, {}, reasoning_opened=reasoning_opened, bare=_bare)


def _bare(scan: Scan) -> None:
    if _ARRAY.match(scan.text, scan.at):
        read_array(scan, (), ("arguments", "parameters"), EXAMPLE)
