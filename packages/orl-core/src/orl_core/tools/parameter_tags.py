"""Three wire formats whose tags name the tool and each parameter.

Qwen3-Coder, Qwen3.5  `<tool_call>⏎<function=NAME>⏎<parameter=x>⏎…⏎</parameter>⏎</function>⏎</tool_call>`
Seed-OSS              `<seed:tool_call>⏎<function=NAME>⏎<parameter=x>…</parameter>⏎</function>⏎</seed:tool_call>`
MiniMax-M2            `<minimax:tool_call>⏎<invoke name="NAME">⏎<parameter name="x">…</parameter>⏎</invoke>⏎…`

They must not know tools, schemas or tokens: arguments are texts, exactly as written, and `typed` gives them their
types. `tagged` reads the tags and decides where the formats are silent; outside its block a tag is text.

- Qwen3-Coder: one newline at either end of a value belongs to the format.
- Seed-OSS: the template writes lists, objects and booleans as Python does. Notes on the budget of reasoning, inside
  `<seed:think>`, are part of the reasoning.
"""

from __future__ import annotations

import re
from functools import partial

from orl_core.tools.tagged import Kind, TagSyntax, named_tag
from orl_core.tools.wire_format import THINKING, WireFormat

_FUNCTION: dict[str, Kind] = {
    "<function=": "call",
    "</function>": "called",
    "<parameter=": "key",
    "</parameter>": "value end",
}
_INVOKE: dict[str, Kind] = {
    "<invoke name=": "call",
    "</invoke>": "called",
    "<parameter name=": "key",
    "</parameter>": "value end",
}
_NAMES = {
    "": re.compile(r"([^<>\n]*+)>"),
    '"': re.compile(r"""(?:"([^"<>\n]*+)"|'([^'<>\n]*+)'|([^"'<>\s]*+))\s*+>"""),
}


def _format(
    block: str,
    tags: dict[str, Kind],
    quote: str = "",
    *,
    thinking: tuple[str, str] = THINKING,
    python: bool = False,
    strips_newline: bool = False,
) -> WireFormat:
    """Return the format whose calls stand in `<block>`; `quote` stands around the names in its tags."""
    kinds: dict[str, Kind] = {f"<{block}>": "open", f"</{block}>": "close", **tags}
    call, called, key, value_end = tags
    syntax = TagSyntax(
        tag=partial(named_tag, kinds, _NAMES[quote]),
        call=f"{call}{quote}a_tool{quote}>",
        called=called,
        key=f"{key}{quote}a_name{quote}>",
        value_end=value_end,
        strips_newline=strips_newline,
    )
    return WireFormat(
        delimiters=(*kinds, *thinking),
        thinking=thinking,
        blocks={f"<{block}>": syntax},
        carries_texts=True,
        python=python,
    )


QWEN3_CODER = _format("tool_call", _FUNCTION, python=True, strips_newline=True)
SEED_OSS = _format("seed:tool_call", _FUNCTION, thinking=("<seed:think>", "</seed:think>"), python=True)
MINIMAX = _format("minimax:tool_call", _INVOKE, '"')
