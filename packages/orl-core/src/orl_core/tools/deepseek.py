"""DeepSeek's wire formats: the fenced JSON of V3 and R1, the plain JSON of V3.1, the DSML tags of V3.2.

V3    `<｜tool▁call▁begin｜>function<｜tool▁sep｜>NAME⏎```json⏎{…}⏎```<｜tool▁call▁end｜>`
V3.1  `<｜tool▁call▁begin｜>NAME<｜tool▁sep｜>{…}<｜tool▁call▁end｜>`
V3.2  `<｜DSML｜invoke name="NAME">` with `<｜DSML｜parameter name="x" string="true">…</｜DSML｜parameter>` inside
It must not know tools, schemas or tokens. What it decides:

- `<｜tool▁calls▁begin｜>` and `…end｜>` frame calls and are not asked for; a fence after the separator makes a call V3.
- A call is complete with its JSON, closed or not. A delimiter inside a JSON string is part of the string; where the
  JSON is broken the call ends at the next delimiter of a call. `json_calls` says what arguments may be.
- In DSML `string="true"` takes a value as it is written, anything else takes it as strict JSON. All arguments may be
  one JSON object instead, and a call without any may close itself: `<｜DSML｜invoke name="NAME"/>`. `tagged` has the
  rest.
- Reasoning is between `<think>` and `</think>`.
"""  # noqa: RUF002

from __future__ import annotations

import re

from orl_core.tools.format import Spelling, lines, writer
from orl_core.tools.json_calls import CallShape, read_name, read_named
from orl_core.tools.scan import Mark, Scan
from orl_core.tools.tagged import Kind, Tag, TagSyntax
from orl_core.tools.wire_format import THINKING, WireFormat, frame

CALLS, CALLS_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"  # noqa: RUF001
CALL, CALL_END, SEPARATOR = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁sep｜>"  # noqa: RUF001
DSML = "｜DSML｜"  # noqa: RUF001
_SHAPE = CallShape(
    example="its name, then its arguments as one JSON object", stops=(CALL, CALL_END, CALLS_END), closing=(CALL_END,)
)
_FENCE = re.compile(r"\s*+([^\n`<{]*+)\s*+```(?:json)?+\s*+")
_TAG = re.compile(
    rf"<(/?+){DSML}(?:(function_calls|tool_calls)|(invoke)|parameter)"
    r'(?:\s++name="([^"<>\n]*+)")?+(?:\s++string="(true|false)")?+\s*+(/?+)>'
)


def _call(scan: Scan) -> None:
    start = scan.at
    name = read_name(scan, SEPARATOR, _SHAPE)
    if name is None:
        return
    fence = _FENCE.match(scan.text, scan.at)
    if fence:
        name = fence.group(1).strip()
        scan.jump(fence.end())
    read_named(scan, _SHAPE, name, start, trailer="```" if fence else "")


def _tag(scan: Scan, mark: Mark) -> Tag | None:
    """Return the tag around `mark`."""
    start = mark.start - (2 if scan.text.startswith("/", mark.start - 1) else 1)
    match = _TAG.match(scan.text, start) if start >= 0 else None
    if match is None:
        return None
    closing, outer, invoke, name, string, alone = match.groups()
    edges: tuple[Kind, Kind] = ("open", "close") if outer else ("call", "called") if invoke else ("key", "value end")
    kind = edges[bool(closing)]
    if alone and kind != "call":
        return None
    is_json = kind == "key" and string != "true"
    return Tag(kind=kind, start=start, end=match.end(), name=name or "", is_json=is_json, closes_itself=bool(alone))


_SYNTAX = TagSyntax(
    tag=_tag,
    call=f'<{DSML}invoke name="a_tool">',
    called=f"</{DSML}invoke>",
    key=f'<{DSML}parameter name="a_name" string="true">',
    value_end=f"</{DSML}parameter>",
    json_body=True,
)

DEEPSEEK = WireFormat(
    delimiters=(CALLS, CALLS_END, CALL, CALL_END, SEPARATOR, DSML, *THINKING),
    spelling=Spelling(
        write=writer(f"{CALLS}{CALL}%(name)s{SEPARATOR}%(json)s{CALL_END}{CALLS_END}"),
        show=lines("<functions>\n", "</functions>", bare=True),
        families=("deepseek-r1", "deepseek-v3", "deepseek-v3.1", "deepseek-v3.2", "deepseek-v4"),
        examples=((CALL,), (DSML,)),
    ),
    readers={CALL: _call, CALLS: frame, CALLS_END: frame},
    blocks={DSML: _SYNTAX},
    closings={CALL_END: CALL},
)
