"""The wire format of Llama 3.1 to 3.3 and 4: `{"name": …, "parameters": {…}}`, after `<|python_tag|>` or without it.

It must not know tools, schemas or tokens. Nothing closes a call: the JSON object itself does. What it decides:

- Without the tag, a text is calls where it, or what follows the reasoning, begins with an object whose first key is
  `name` or `type`. Behind text, as Llama 4's template writes it, an object is a call where it begins with a `name` that
  is a string and with `parameters`; any other object is an answer in JSON, and text.
- After the tag everything is meant to be a call.
- Calls are joined by `;` or white space; behind `;` every object is meant to be a call. What follows the last is text.
- Arguments stand under `parameters`, or under `arguments` where there are none. `json_calls` says what they may be.
- Broken JSON ends at the next tag, or the end: UNCLOSED where the text ends inside the object.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from orl_core.tools.json_calls import broken, call_of
from orl_core.tools.marked import Mark, Marked
from orl_core.tools.scan import THINKING, Scan, read
from orl_core.tools.strict_json import NotJson, read_value

if TYPE_CHECKING:
    from orl_core.tools.scan import Parsed

TAG = "<|python_tag|>"
DELIMITERS = (TAG, *THINKING)
EXAMPLE = '{"name": "a_tool", "parameters": {}}'
_KEYS = ("parameters", "arguments")
_CALL = re.compile(r'\s*+;?+\s*+(?=\{\s*+"(?:name|type)"\s*+:)')
_AFTER_TEXT = re.compile(r'\{\s*+"name"\s*+:\s*+"(?:[^"\\]++|\\.)++"\s*+,\s*+"parameters"\s*+:', re.DOTALL)
_OBJECT = "{"  # the delimiter of the marks that stand, without width, before such an object
_NEXT = re.compile(rf"\s*+;\s*+(?=\{{)|{_CALL.pattern}")


def parse(marked: Marked, *, reasoning_opened: bool = False) -> Parsed:
    """Everything in `marked`, in order. `reasoning_opened`: the prompt has already opened `<think>`."""
    objects = [Mark(start=at.start(), end=at.start(), delimiter=_OBJECT) for at in _AFTER_TEXT.finditer(marked.text)]
    marks = tuple(sorted((*marked.marks, *objects), key=lambda mark: mark.start)) if objects else marked.marks
    readers = {TAG: _tagged, _OBJECT: _after_text}
    return read(Marked(text=marked.text, marks=marks), readers, reasoning_opened=reasoning_opened, bare=_bare)


def _tagged(scan: Scan) -> None:
    scan.say_to_mark()
    _objects(scan)


def _after_text(scan: Scan) -> None:
    scan.say_to_mark()
    _objects(scan)


def _bare(scan: Scan) -> None:
    if _CALL.match(scan.text, scan.at):
        _objects(scan)


def _objects(scan: Scan) -> None:
    """The calls from here on, until something else follows."""
    while True:
        start = scan.at
        try:
            value, end = read_value(scan.text, start)
        except NotJson as exc:
            scan.go(start, (TAG,))
            text = scan.text[start : scan.at].strip()
            scan.calls.append(broken(str(exc), text, EXAMPLE, closed=not exc.cut))
            return
        scan.calls.append(call_of(value, scan.text[start:end].strip(), _KEYS, EXAMPLE))
        following = _NEXT.match(scan.text, end)
        scan.jump(following.end() if following else end)
        if following is None:
            return
