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

from orl_core.tools.json_calls import CallShape, read_array
from orl_core.tools.scan import Scan
from orl_core.tools.wire_format import THINKING, WireFormat

_SHAPE = CallShape(example='[{"name": "a_tool", "arguments": {}}]', keys=("arguments", "parameters"))
_ARRAY = re.compile(r'\s*+\[\s*+\{\s*+"(?:name|arguments)"\s*+:')


def _bare(scan: Scan) -> None:
    if _ARRAY.match(scan.text, scan.at):
        read_array(scan, _SHAPE)


JSON_ARRAY = WireFormat(delimiters=THINKING, bare=_bare)
