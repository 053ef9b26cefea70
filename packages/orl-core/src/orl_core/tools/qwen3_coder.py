"""The wire format of Qwen3-Coder and Qwen3.5: `<tool_call>⏎<function=NAME>⏎<parameter=x>⏎…⏎</parameter>⏎</function>…`.

It must not know tools, schemas or tokens: arguments leave it as texts, and `typed` gives them their types. One newline
at either end of a value belongs to the format. `tagged` says how tags are read and what is decided where the format is
silent; outside `<tool_call>` a `<function=` is text. Reasoning stands between `<think>` and `</think>`, or the end.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from orl_core.tools.scan import THINK, THOUGHT, Scan, read
from orl_core.tools.tagged import Dialect, Kind, Tag, read_block

if TYPE_CHECKING:
    from orl_core.tools.marked import Mark, Marked
    from orl_core.tools.scan import Parsed

OPEN = "<tool_call>"
_KINDS: dict[str, Kind] = {
    OPEN: "open",
    "</tool_call>": "close",
    "<function=": "call",
    "</function>": "called",
    "<parameter=": "key",
    "</parameter>": "value end",
}
DELIMITERS = (*_KINDS, THINK, THOUGHT)
_NAME = re.compile(r"([^<>\n]*+)>")


def parse(marked: Marked, *, reasoning_opened: bool = False) -> Parsed:
    """Everything in `marked`, in order, arguments as texts. `reasoning_opened`: the prompt has opened `<think>`."""
    return read(marked, {OPEN: _block}, reasoning_opened=reasoning_opened)


def _block(scan: Scan) -> None:
    read_block(scan, _DIALECT)


def _tag(scan: Scan, mark: Mark) -> Tag | None:
    kind = _KINDS.get(mark.delimiter)
    if kind is None:
        return None
    if kind not in {"call", "key"}:
        return Tag(kind=kind, start=mark.start, end=mark.end)
    name = _NAME.match(scan.text, mark.end)
    return Tag(kind=kind, start=mark.start, end=name.end(), name=name.group(1).strip()) if name else None


_DIALECT = Dialect(
    tag=_tag,
    call="<function=a_tool>",
    called="</function>",
    key="<parameter=a_name>",
    value_end="</parameter>",
    strips_newline=True,
)
