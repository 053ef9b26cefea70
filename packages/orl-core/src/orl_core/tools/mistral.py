"""Mistral's wire formats: `[TOOL_CALLS] [{"name": …, "arguments": {…}}, …]` and `[TOOL_CALLS]name[ARGS]{…}`.

It must not know tools, schemas or tokens. The tokenizers up to v7 write the array, later ones the second form, v11 with
`[CALL_ID]…` before `[ARGS]`; both are read, told apart by what follows `[TOOL_CALLS]`. What it decides:

- Nothing closes a call but its JSON: what follows the array or the object is text.
- An array is read element by element. A broken one ends it, at the next `[TOOL_CALLS]` or the end, and the elements
  before it count: UNCLOSED where the text ends inside it. A missing `]` after a complete element is no fault.
- `json_calls` says what arguments may be. Reasoning is between `[THINK]` and `[/THINK]`.
"""

from __future__ import annotations

from orl_core.messages import FailureKind
from orl_core.tools.format import OBJECT, Spelling, array, writer
from orl_core.tools.json_calls import CallShape, fail_json, named_call, read_array
from orl_core.tools.scan import Scan
from orl_core.tools.strict_json import NotJson, read_value, skip_space
from orl_core.tools.wire_format import WireFormat

CALLS, ARGS, CALL_ID = "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"
_THINKING = ("[THINK]", "[/THINK]")
_DELIMITERS = (CALLS, ARGS, CALL_ID, *_THINKING)
_ARRAY = CallShape(example='{"name": "a_tool", "arguments": {}}', numbered="id", stops=(CALLS,))
_ARGUMENTS = CallShape(example="a JSON object", stops=(CALLS,))


def _calls(scan: Scan) -> None:
    if scan.text.startswith("[", skip_space(scan.text, scan.at)) and not _at_mark(scan):
        read_array(scan, _ARRAY)
    else:
        _named(scan)


def _at_mark(scan: Scan) -> bool:
    """Return whether a delimiter comes next: they begin with a bracket too."""
    place = skip_space(scan.text, scan.at)
    return scan.index < len(scan.marks) and scan.marks[scan.index].start == place


def _named(scan: Scan) -> None:
    start, id_ = scan.at, ""
    mark = scan.go(start, _DELIMITERS)
    name = scan.text[start : scan.at].strip()
    if mark is not None and mark.delimiter == CALL_ID:
        scan.pass_mark()
        begun = scan.at
        mark = scan.go(begun, _DELIMITERS)
        id_ = scan.text[begun : scan.at].strip()
    if mark is None:
        scan.fail(FailureKind.UNCLOSED, f"the tool call is not complete: no {ARGS} follows its name", start)
    elif mark.delimiter != ARGS:
        scan.fail(FailureKind.MALFORMED, f"the name of the tool call is not followed by {ARGS}", start)
    else:
        scan.pass_mark()
        _arguments(scan, name, start)
    scan.give_id(id_)


def _arguments(scan: Scan, name: str, start: int) -> None:
    place = scan.at
    try:
        value, end = read_value(scan.text, place)
    except NotJson as exc:
        empty = _at_mark(scan) or skip_space(scan.text, place) == len(scan.text)
        fail_json(scan, exc, place if empty else start, _ARGUMENTS, name=name)
        return
    scan.jump(end)
    if name:
        scan.calls.append(named_call(name, value, scan.text[start:end].strip(), f"{name}{ARGS}{{}}"))
    else:
        scan.fail(FailureKind.MISSING_NAME, f"the tool call has no name before {ARGS}; write a_tool{ARGS}{{}}", start)


MISTRAL = WireFormat(
    delimiters=_DELIMITERS,
    spelling=Spelling(
        write=writer(f"{CALLS} [{OBJECT}]"),
        show=array("[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]"),
        families=("ministral-3",),
        examples=((CALLS,),),
    ),
    thinking=_THINKING,
    readers={CALLS: _calls},
    closings={ARGS: CALLS},
    call_ends_reasoning=False,
)
