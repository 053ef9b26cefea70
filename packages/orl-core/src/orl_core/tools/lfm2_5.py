"""LFM2.5's wire format: `<|tool_call_start|>[a_tool(x='it's')]<|tool_call_end|>`, strings without escapes.

It must not know tools, schemas or tokens. The format is `pythonic` but for one thing: the published templates of LFM2.5
print a string between single quotes as it is, so that quotes, backslashes and line breaks inside are a part of it. Such
a string ends at a quote that the next argument, or the end of the call, follows. What it decides:

- A string that holds `', name=` or `')]` cannot be told from two values, and is cut there, as its template writes it.
- A string between double quotes, and all that stands inside lists and dicts, is read with Python's escapes.
- A single-quoted string ends before the next delimiter. Without delimiters nothing is a call.
"""

from __future__ import annotations

import re
from typing import Any

from orl_core.tools.python_literal import NotLiteral, after_space, read_literal
from orl_core.tools.pythonic import LFM_END, LFM_START, STOPS, WORD, read_block
from orl_core.tools.scan import Scan
from orl_core.tools.wire_format import THINKING, WireFormat, frame

_END = re.compile(rf"'(?=\s*+(?:,\s*+{WORD}\s*+=|\)\s*+(?:\]|,\s*+{WORD}\s*+\()))")


def _between(scan: Scan) -> None:
    following = (scan.marks[index] for index in range(scan.index, len(scan.marks)))
    bound = next((mark.start for mark in following if mark.delimiter in STOPS), len(scan.text))

    def value(text: str, start: int) -> tuple[Any, int]:
        place = after_space(text, start)
        if not text.startswith("'", place):
            return read_literal(text, start)
        found = _END.search(text, place + 1, bound)
        if found is None:
            raise NotLiteral("a string does not end", text, bound)
        return text[place + 1 : found.start()], found.end()

    read_block(scan, value)


LFM2_5 = WireFormat(delimiters=(LFM_START, LFM_END, *THINKING), readers={LFM_START: _between, LFM_END: frame})
