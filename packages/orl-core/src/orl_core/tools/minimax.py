"""The format of MiniMax-M2: `<minimax:tool_call>⏎<invoke name="NAME">⏎<parameter name="x">…</parameter>⏎</invoke>…`.

It must not know tools, schemas or tokens: arguments leave it as texts, exactly as written, and `typed` gives them their
types. `tagged` says how tags are read and what is decided where the format is silent; outside `<minimax:tool_call>` an
`<invoke` is text. Reasoning stands between `<think>` and `</think>`, or the end.
"""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING

from orl_core.tools.scan import THINKING, read
from orl_core.tools.tagged import Dialect, Kind, named_tag, read_block

if TYPE_CHECKING:
    from orl_core.tools.marked import Marked
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
DELIMITERS = (*_KINDS, *THINKING)
_NAME = re.compile(r"""(?:"([^"<>\n]*+)"|'([^'<>\n]*+)'|([^"'<>\s]*+))\s*+>""")


def parse(marked: Marked, *, reasoning_opened: bool = False) -> Parsed:
    """Everything in `marked`, in order, arguments as texts. `reasoning_opened`: the prompt has opened `<think>`."""
    return read(marked, {OPEN: partial(read_block, dialect=_DIALECT)}, reasoning_opened=reasoning_opened)


_DIALECT = Dialect(
    tag=partial(named_tag, _KINDS, _NAME),
    call='<invoke name="a_tool">',
    called="</invoke>",
    key='<parameter name="a_name">',
    value_end="</parameter>",
)
