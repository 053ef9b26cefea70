"""The hermes wire format (Qwen2.5, Qwen3, Hermes): `<tool_call>{"name": …, "arguments": {…}}</tool_call>`.

It must not know tools, schemas or tokens. What it decides where the format is silent:

- A block is a call when its JSON object is complete, closed or not: a stop token may stand in place of `</tool_call>`.
  A block that is neither closed nor complete is UNCLOSED.
- A delimiter inside a JSON string is part of the string. Broken JSON ends at the next tag.
- `arguments` may be left out if the object has nothing but a name. `json_calls` says what else arguments may be.
- Reasoning stands between `<think>` and `</think>`, or the end; a call inside it does not count. A closing tag that
  closes nothing is text.
"""

from __future__ import annotations

import json

from orl_core.messages import ToolCall
from orl_core.tools.json_calls import CallShape, broken, call_of, read_body
from orl_core.tools.scan import Scan
from orl_core.tools.wire_format import THINKING, WireFormat

OPEN, CLOSE = "<tool_call>", "</tool_call>"
_SHAPE = CallShape(example='{"name": "a_tool", "arguments": {}}')


def _block(scan: Scan) -> None:
    body = read_body(scan, (OPEN, CLOSE), (CLOSE,))
    if body.complaint:
        scan.calls.append(broken(body.complaint, body.text, _SHAPE.example, closed=body.closed, missing=CLOSE))
    else:
        scan.calls.append(call_of(body.value, body.text, _SHAPE))


def _written(call: ToolCall) -> str:
    return f"{OPEN}\n{json.dumps({'name': call.name, 'arguments': call.arguments}, ensure_ascii=False)}\n{CLOSE}"


HERMES = WireFormat(delimiters=(OPEN, CLOSE, *THINKING), readers={OPEN: _block}, write=_written)
