"""Formats with tags that name the tool and each parameter.

    Qwen3-Coder, 3.5  <tool_call>⏎<function=NAME>⏎<parameter=x>⏎…⏎</parameter>⏎</function>⏎</tool_call>
    Seed-OSS          <seed:tool_call>⏎<function=NAME>⏎<parameter=x>…</parameter>⏎</function>⏎</seed:tool_call>
    MiniMax-M2        <minimax:tool_call>⏎<invoke name="NAME">⏎<parameter name="x">…</parameter>⏎</invoke>⏎…

They must not know tools, schemas or tokens: arguments are texts, exactly as written, and `typed` gives them their
types. `tagged` reads the tags and decides what the formats leave open; outside its block a tag is text, unless it
begins a whole call.

- Qwen3-Coder: one newline at either end of a value belongs to the format.
- Seed-OSS: the template writes lists, objects and booleans as Python does. Notes on the budget of reasoning, inside
  `<seed:think>`, are part of the reasoning.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial

from orl_core.names import ToolFormat
from orl_core.tools.format import Spelling, array, lines, writer
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
    spelling: Spelling,
    *,
    quote: str = "",
    thinking: tuple[str, str] = THINKING,
    strips_newline: bool = False,
) -> WireFormat:
    """Return the format of calls in `<block>`; `quote` is around names in its tags."""
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
        spelling=spelling,
        thinking=thinking,
        blocks={f"<{block}>": syntax},
        carries_texts=True,
        python=tags is _FUNCTION,  # whose templates print null as Python does
    )


FORMATS: Mapping[ToolFormat, WireFormat] = {
    "qwen3_coder": _format(
        "tool_call",
        _FUNCTION,
        Spelling(
            write=writer(
                "<tool_call>\n<function=%(name)s>\n%(arguments)s</function>\n</tool_call>",
                "<parameter=%(key)s>\n%(value)s\n</parameter>\n",
            ),
            families=("qwen3.5", "qwen3.6", "qwen3.8", "qwen3-coder-next", "nemotron-3", "step-3.5"),
            examples=(("<tool_call>", "<function="),),
        ),
        strips_newline=True,
    ),
    "seed_oss": _format(
        "seed:tool_call",
        _FUNCTION,
        Spelling(
            write=writer(
                "<seed:tool_call>\n<function=%(name)s>\n%(arguments)s</function>\n</seed:tool_call>",
                "<parameter=%(key)s>%(value)s</parameter>\n",
            ),
            show=array("Tool List:\n", ""),
            examples=(("<seed:tool_call>",),),
        ),
        thinking=("<seed:think>", "</seed:think>"),
    ),
    "minimax": _format(
        "minimax:tool_call",
        _INVOKE,
        Spelling(
            write=writer(
                '<minimax:tool_call>\n<invoke name="%(name)s">\n%(arguments)s</invoke>\n</minimax:tool_call>',
                '<parameter name="%(key)s">%(value)s</parameter>\n',
            ),
            show=lines("<tools>\n", "</tools>", bare=True, around=("<tool>", "</tool>")),
            families=("minimax-m2", "minimax-m2.5", "minimax-m2.7"),
            examples=(("<minimax:tool_call>",),),
        ),
        quote='"',
    ),
}
