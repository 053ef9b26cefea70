"""The wire format of Qwen3-Coder and Qwen3.5: `<tool_call>⏎<function=NAME>⏎<parameter=x>⏎…⏎</parameter>⏎</function>…`.

It must not know tools, schemas or tokens: arguments leave it as texts, and `typed` gives them their types. One newline
at either end of a value belongs to the format. `tagged` says how tags are read and what is decided where the format is
silent; outside `<tool_call>` a `<function=` is text. Reasoning stands between `<think>` and `</think>`, or the end.
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

OPEN = "<tool_call>"
_KINDS: dict[str, Kind] = {
    OPEN: "open",
    "</tool_call>": "close",
    "<function=": "call",
    "</function>": "called",
    "<parameter=": "key",
    "</parameter>": "value end",
}
DELIMITERS = (*_KINDS, *THINKING)
_NAME = re.compile(r"([^<>\n]*+)>")


def parse(marked: Marked, *, reasoning_opened: bool = False) -> Parsed:
    """Everything in `marked`, in order, arguments as texts. `reasoning_opened`: the prompt has opened `<think>`."""
    return read(marked, {OPEN: partial(read_block, dialect=_DIALECT)}, reasoning_opened=reasoning_opened)


_DIALECT = Dialect(
    tag=partial(named_tag, _KINDS, _NAME),
    call="<function=a_tool>",
    called="</function>",
    key="<parameter=a_name>",
    value_end="</parameter>",
    strips_newline=True,
)
