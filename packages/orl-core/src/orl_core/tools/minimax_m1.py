"""The wire format of MiniMax-M1 and Hunyuan-A13B: calls in JSON between `<tool_calls>` and `</tool_calls>`.

M1 writes one object a line, `{"name": …, "arguments": {…}}`, Hunyuan one array of such objects; both are read. The
module must not know tools, schemas or tokens. What it decides where the formats are silent:

- Objects are read one by one: those before a broken one count, and the block ends there. It is UNCLOSED where the text
  ends inside an object, and INVALID_JSON elsewhere. A missing `</tool_calls>` after an object is no fault.
- A block with nothing in it, or with text behind its objects, is MALFORMED.
- A delimiter inside a JSON string is part of the string. `json_calls` says what arguments may be.
- Reasoning stands between `<think>` and `</think>`, or the end.
"""

from __future__ import annotations

from orl_core.messages import FailureKind
from orl_core.tools.json_calls import CallShape, read_array, read_object
from orl_core.tools.scan import Scan
from orl_core.tools.strict_json import skip_space
from orl_core.tools.wire_format import THINKING, WireFormat

OPEN, CLOSE = "<tool_calls>", "</tool_calls>"
_SHAPE = CallShape(example='{"name": "a_tool", "arguments": {}}', stops=(OPEN, CLOSE))


def _block(scan: Scan) -> None:
    found = len(scan.calls)
    if scan.text.startswith("[", skip_space(scan.text, scan.at)):
        read_array(scan, _SHAPE)
    else:
        while scan.text.startswith("{", place := skip_space(scan.text, scan.at)):
            scan.jump(place)
            if not read_object(scan, _SHAPE):
                break
    start = scan.at
    mark = scan.go(start, (OPEN, CLOSE))
    stray = bool(scan.text[start : scan.at].strip())
    if stray or len(scan.calls) == found:
        kind = FailureKind.UNCLOSED if mark is None else FailureKind.MALFORMED
        scan.fail(kind, f"there is {'text' if stray else 'nothing'} where {_SHAPE.example} should stand", start)
    if mark is not None and mark.delimiter == CLOSE:
        scan.pass_mark()


MINIMAX_M1 = WireFormat(delimiters=(OPEN, CLOSE, *THINKING), readers={OPEN: _block})
