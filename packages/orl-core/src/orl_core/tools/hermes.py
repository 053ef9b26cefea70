"""The hermes wire format (Qwen2.5, Qwen3, Hermes): `<tool_call>{"name": …, "arguments": {…}}</tool_call>`.

It must not know tools, schemas or tokens. The parser is total and reads once from left to right: any marked text gives
text, reasoning, calls and typed failures in order, and never an exception. What it decides where the format is silent:

- A block is a call when its JSON object is complete, closed or not: a stop token may stand where `</tool_call>` should.
  A block that ends without its closing tag and is not complete is UNCLOSED.
- A delimiter inside a JSON string is part of the string. Where the JSON is broken, the block ends at the next tag.
- `arguments` may be left out where the object has nothing but a name; keys beside `name` and `arguments` are ignored.
  `json_calls` says what else arguments may be, `strict_json` what counts as JSON: duplicate keys, NaN, overflowing
  numbers and deep nesting do not.
- Reasoning stands between `<think>` and `</think>`, or the end; a call inside it does not count. A closing tag that
  closes nothing is text.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from orl_core.tools.json_calls import broken, call_of, read_body
from orl_core.tools.scan import THINKING, Scan, read

if TYPE_CHECKING:
    from orl_core.tools.marked import Marked
    from orl_core.tools.scan import Parsed

OPEN, CLOSE = "<tool_call>", "</tool_call>"
DELIMITERS = (OPEN, CLOSE, *THINKING)
EXAMPLE = '{"name": "a_tool", "arguments": {}}'


def parse(marked: Marked, *, reasoning_opened: bool = False) -> Parsed:
    """Everything in `marked`, in order. `reasoning_opened`: the prompt has already opened `<think>`.

    Text and reasoning are stripped of white space at their ends, parts of them are joined by a newline.
    """
    return read(marked, {OPEN: _block}, reasoning_opened=reasoning_opened)


def _block(scan: Scan) -> None:
    scan.say_to_mark()
    body = read_body(scan, (OPEN, CLOSE), (CLOSE,))
    if body.complaint:
        scan.calls.append(broken(body.complaint, body.text, EXAMPLE, closed=body.closed, missing=CLOSE))
    else:
        scan.calls.append(call_of(body.value, body.text, ("arguments",), EXAMPLE))
