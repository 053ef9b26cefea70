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

from orl_core.tools.json_calls import CallShape, read_object
from orl_core.tools.marked import Mark, Marked
from orl_core.tools.scan import Scan
from orl_core.tools.wire_format import THINKING, WireFormat

TAG = "<|python_tag|>"
_SHAPE = CallShape(example='{"name": "a_tool", "parameters": {}}', keys=("parameters", "arguments"), stops=(TAG,))
_CALL = re.compile(r'\s*+;?+\s*+(?=\{\s*+"(?:name|type)"\s*+:)')
_AFTER_TEXT = re.compile(r'\{\s*+"name"\s*+:\s*+"(?:[^"\\]++|\\.)++"\s*+,\s*+"parameters"\s*+:', re.DOTALL)
_OBJECT = "{"  # the delimiter of the marks that stand, without width, before such an object
_NEXT = re.compile(rf"\s*+;\s*+(?=\{{)|{_CALL.pattern}")


def _prepared(marked: Marked) -> Marked:
    """Mark the objects that are calls behind text."""
    objects = [Mark(start=at.start(), end=at.start(), delimiter=_OBJECT) for at in _AFTER_TEXT.finditer(marked.text)]
    if not objects:
        return marked
    return Marked(text=marked.text, marks=tuple(sorted((*marked.marks, *objects), key=lambda mark: mark.start)))


def _bare(scan: Scan) -> None:
    if _CALL.match(scan.text, scan.at):
        _objects(scan)


def _objects(scan: Scan) -> None:
    """Read the calls from here on, until something else follows."""
    while read_object(scan, _SHAPE) and (following := _NEXT.match(scan.text, scan.at)):
        scan.jump(following.end())


LLAMA3 = WireFormat(
    delimiters=(TAG, *THINKING), readers={TAG: _objects, _OBJECT: _objects}, bare=_bare, prepared=_prepared
)
