"""DeepSeek's wire formats: the fenced JSON of V3 and R1, the plain JSON of V3.1, the DSML tags of V3.2.

V3    `<｜tool▁call▁begin｜>function<｜tool▁sep｜>NAME⏎```json⏎{…}⏎```<｜tool▁call▁end｜>`
V3.1  `<｜tool▁call▁begin｜>NAME<｜tool▁sep｜>{…}<｜tool▁call▁end｜>`
V3.2  `<｜DSML｜invoke name="NAME">` with `<｜DSML｜parameter name="x" string="true">…</｜DSML｜parameter>` inside
It must not know tools, schemas or tokens. What it decides:

- `<｜tool▁calls▁begin｜>` and `…end｜>` frame calls and are not asked for; a fence after the separator makes a call V3.
- A call is complete with its JSON, closed or not. A delimiter inside a JSON string is part of the string; where the
  JSON is broken the call ends at the next delimiter of a call. `json_calls` says what arguments may be.
- In DSML `string="true"` takes a value as it is written, anything else takes it as strict JSON. All arguments may stand
  as one JSON object instead, and a call without any may close itself: `<｜DSML｜invoke name="NAME"/>`. `tagged` has the
  rest.
- Reasoning stands between `<think>` and `</think>`, or the end.
"""  # noqa: RUF002

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING

from orl_core.messages import FailureKind
from orl_core.tools.json_calls import broken, named_call, read_body
from orl_core.tools.scan import THINKING, Scan, dropped, read
from orl_core.tools.tagged import Dialect, Tag, read_block

if TYPE_CHECKING:
    from orl_core.tools.marked import Mark, Marked
    from orl_core.tools.scan import Parsed

CALLS, CALLS_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"  # noqa: RUF001
CALL, CALL_END, SEPARATOR = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁sep｜>"  # noqa: RUF001
DSML = "｜DSML｜"  # noqa: RUF001
DELIMITERS = (CALLS, CALLS_END, CALL, CALL_END, SEPARATOR, DSML, *THINKING)
_STOPS = (CALL, CALL_END, CALLS_END)
_FENCE = re.compile(r"\s*+([^\n`<{]*+)\s*+```(?:json)?+\s*+")
_TAG = re.compile(
    rf"<(/?+){DSML}(?:(function_calls|tool_calls)|(invoke)|parameter)"
    r'(?:\s++name="([^"<>\n]*+)")?+(?:\s++string="(true|false)")?+\s*+(/?+)>'
)


def parse(marked: Marked, *, reasoning_opened: bool = False) -> Parsed:
    """Everything in `marked`, in order. `reasoning_opened`: the prompt has already opened `<think>`."""
    readers = {CALL: _call, CALLS: dropped, CALLS_END: dropped, DSML: partial(read_block, dialect=_DIALECT)}
    return read(marked, readers, reasoning_opened=reasoning_opened)


def _call(scan: Scan) -> None:
    scan.say_to_mark()
    start = scan.at
    mark = scan.go(start, (*_STOPS, SEPARATOR))
    name = scan.text[start : scan.at].strip()
    if mark is None:
        scan.fail(FailureKind.UNCLOSED, f"the tool call is not complete: it has no {SEPARATOR}", start)
        return
    if mark.delimiter != SEPARATOR:
        scan.fail(FailureKind.MALFORMED, f"no {SEPARATOR} follows the name of the tool call", start)
        _pass_end(scan, mark)
        return
    scan.pass_mark()
    fence = _FENCE.match(scan.text, scan.at)
    if fence:
        name = fence.group(1).strip()
        scan.jump(fence.end())
    body = read_body(scan, _STOPS, (CALL_END,), trailer="```" if fence else "")
    if body.complaint:
        failure = broken(body.complaint, body.text, "one JSON object", closed=body.closed, missing=CALL_END, name=name)
        scan.calls.append(failure)
    elif not name:
        scan.fail(FailureKind.MISSING_NAME, "the tool call has no name", start)
    else:
        scan.calls.append(named_call(name, body.value, body.text, "the arguments as one JSON object"))


def _pass_end(scan: Scan, mark: Mark) -> None:
    if mark.delimiter == CALL_END:
        scan.pass_mark()


def _tag(scan: Scan, mark: Mark) -> Tag | None:
    """The tag whose middle is `mark`."""
    start = mark.start - (2 if scan.text.startswith("/", mark.start - 1) else 1)
    found = _TAG.match(scan.text, start) if start >= 0 else None
    if found is None:
        return None
    closing, outer, invoke, name, string, alone = found.groups()
    if outer:
        kind = "close" if closing else "open"
    elif invoke:
        kind = "called" if closing else "call"
    else:
        kind = "value end" if closing else "key"
    if alone and kind != "call":
        return None
    is_json = kind == "key" and string != "true"
    return Tag(kind=kind, start=start, end=found.end(), name=name or "", is_json=is_json, closes_itself=bool(alone))


_DIALECT = Dialect(
    tag=_tag,
    call=f'<{DSML}invoke name="a_tool">',
    called=f"</{DSML}invoke>",
    key=f'<{DSML}parameter name="a_name" string="true">',
    value_end=f"</{DSML}parameter>",
    json_body=True,
)
