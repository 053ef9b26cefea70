"""The format of MiniMax-M2: `<minimax:tool_call>⏎<invoke name="NAME">⏎<parameter name="x">…</parameter>⏎</invoke>…`.

It must not know tools, schemas or tokens: arguments leave it as texts, exactly as written, and `typed` gives them their
types. `tagged` says how tags are read and what is decided where the format is silent; outside `<minimax:tool_call>` an
`<invoke` is text. Reasoning stands between `<think>` and `</think>`, or the end.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from orl_core.tools.scan import THINK, THOUGHT, Scan, read
from orl_core.tools.tagged import Dialect, Kind, Tag, read_block

if TYPE_CHECKING:
    from orl_core.tools.marked import Mark, Marked
    from orl_core.tools.scan import Parsed

OPEN = "<minimax:tool_call>"
_KINDS: dict[str, Kind] = {
    OPEN: "open",
    "</minimax:tool_call>": "close",
    "<invoke name=": "call",
    "</invoke>": "called",
    "<parameter name=": "key",
    "</parameter>": "value end",
}
DELIMITERS = (*_KINDS, THINK, THOUGHT)
_NAME = re.compile(r"""(?:"([^"<>\n]*+)"|'([^'<>\n]*+)'|([^"'<>\s]*+))\s*+>""")


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
    found = _NAME.match(scan.text, mark.end)
    if found is None:
        return None
    return Tag(kind=kind, start=mark.start, end=found.end(), name=found.group(found.lastindex or 1).strip())


_DIALECT = Dialect(
    tag=_tag,
    call='<invoke name="a_tool">',
    called="</invoke>",
    key='<parameter name="a_name">',
    value_end="</parameter>",
    strips_newline=False,
)
