"""The wire format of Seed-OSS: `<seed:tool_call>⏎<function=NAME>⏎<parameter=x>…</parameter>⏎</function>⏎…`.

It must not know tools, schemas or tokens: arguments leave it as texts, exactly as written, and `typed` gives them their
types; the template writes lists, objects and booleans as Python does. `tagged` says how tags are read and what is
decided where the format is silent; outside `<seed:tool_call>` a `<function=` is text. Reasoning stands between
`<seed:think>` and `</seed:think>`, or the end; notes on its budget inside are a part of it.
"""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING

from orl_core.tools.scan import read
from orl_core.tools.tagged import Dialect, Kind, named_tag, read_block

if TYPE_CHECKING:
    from orl_core.tools.marked import Marked
    from orl_core.tools.scan import Parsed

OPEN = "<seed:tool_call>"
THINKING = ("<seed:think>", "</seed:think>")
_KINDS: dict[str, Kind] = {
    OPEN: "open",
    "</seed:tool_call>": "close",
    "<function=": "call",
    "</function>": "called",
    "<parameter=": "key",
    "</parameter>": "value end",
}
DELIMITERS = (*_KINDS, *THINKING)
_NAME = re.compile(r"([^<>\n]*+)>")


def parse(marked: Marked, *, reasoning_opened: bool = False) -> Parsed:
    """Read everything in `marked`, in order, arguments as texts. `reasoning_opened`: the prompt opened reasoning."""
    readers = {OPEN: partial(read_block, dialect=_DIALECT)}
    return read(marked, readers, reasoning_opened=reasoning_opened, thinking=THINKING)


_DIALECT = Dialect(
    tag=partial(named_tag, _KINDS, _NAME),
    call="<function=a_tool>",
    called="</function>",
    key="<parameter=a_name>",
    value_end="</parameter>",
)
