"""The wire format of GLM-4.5 to 4.7: `<tool_call>NAME⏎<arg_key>x</arg_key>⏎<arg_value>…</arg_value>⏎</tool_call>`.

It must not know tools, schemas or tokens: arguments leave it as texts, exactly as written, and `typed` gives them their
types. White space between tags is free, which makes the line form of 4.5 and the compact one of 4.7 the same. What it
decides where the format is silent:

- A name is one word. A call without arguments is a name alone.
- Values cannot be escaped: if another tag of the format comes before `</arg_value>`, a tag is missing, text is
  between tags or a key appears twice, the call is MALFORMED, and ends at the next `<tool_call>` or `</tool_call>`.
- A call needs its `</tool_call>`; one that ends with the text, or where the next begins, is UNCLOSED.
- Reasoning is between `<think>` and `</think>`; a call inside it does not count and does not end it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from orl_core.messages import FailureKind, ToolCall
from orl_core.tools.format import Spelling, writer
from orl_core.tools.scan import Mark, Scan
from orl_core.tools.wire_format import THINKING, WireFormat

OPEN, CLOSE = "<tool_call>", "</tool_call>"
_ARGUMENT = ("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>")
EXAMPLE = "<arg_key>a_name</arg_key><arg_value>its value</arg_value>"
_NAME = re.compile(r"[^\s<>{}\"]++")


def _block(scan: Scan) -> None:
    start, first = scan.at, scan.index
    end = scan.go(start, (OPEN, CLOSE))
    tags = [mark for mark in scan.marks[first : scan.index] if mark.delimiter in _ARGUMENT]
    stop = scan.at
    name = scan.text[start : tags[0].start if tags else stop].strip()
    arguments, complaint = _arguments(scan.text, tags, stop)
    named = _NAME.fullmatch(name) is not None
    if end is None or end.delimiter == OPEN:
        scan.fail(FailureKind.UNCLOSED, f"the tool call has no {CLOSE}", start, name=name if named and tags else "")
        return
    if not named:
        scan.fail(
            FailureKind.MISSING_NAME, f"the tool call does not begin with a tool's name; write {OPEN}a_tool", start
        )
    elif complaint:
        scan.fail(FailureKind.MALFORMED, f"the call of `{name}` cannot be read: {complaint}", start, name=name)
    else:
        scan.calls.append(ToolCall(name=name, arguments=arguments))
    scan.pass_mark()


def _arguments(text: str, tags: Sequence[Mark], stop: int) -> tuple[dict[str, Any], str]:
    """Return the arguments before `stop`, and what is wrong with them; empty if nothing is."""
    arguments: dict[str, Any] = {}
    key = ""
    for index, tag in enumerate(tags):
        if tag.delimiter != _ARGUMENT[index % 4]:
            return arguments, f"{_ARGUMENT[index % 4]} is missing; write {EXAMPLE}"
        inside = text[tag.end : tags[index + 1].start if index + 1 < len(tags) else stop]
        match index % 4:
            case 0:
                key = inside.strip()
                if not key or key in arguments:
                    return arguments, f"the key `{key}` appears twice" if key else "a key is empty"
            case 2:
                arguments[key] = inside
            case _ if inside.strip():
                return arguments, f"unexpected text between tags; write {EXAMPLE}"
            case _:
                pass
    missing = len(tags) % 4
    return arguments, f"{_ARGUMENT[missing]} is missing; write {EXAMPLE}" if missing else ""


GLM45 = WireFormat(
    delimiters=(OPEN, CLOSE, *_ARGUMENT, *THINKING),
    spelling=Spelling(
        write=writer(
            "<tool_call>%(name)s\n%(arguments)s</tool_call>",
            "<arg_key>%(key)s</arg_key>\n<arg_value>%(value)s</arg_value>\n",
        ),
        families=("glm-4.5", "glm-4.6", "glm-4.7", "glm-5", "glm-5.1", "glm-5.2", "glm-5.3"),
        examples=((OPEN, "<arg_key>"),),
    ),
    readers={OPEN: _block},
    closings={CLOSE: OPEN},
    carries_texts=True,
)
