"""The wire format of MiniMax-M3: XML whose tags all begin with the token `]<]minimax[>[`, here written `§`.

    §<tool_call>⏎§<invoke name="NAME">§<x>1§</x>§<list>§<item>a§</item>§<item>b§</item>§</list>§</invoke>⏎§</tool_call>

It must not know tools, schemas or tokens: arguments leave it as texts, lists and objects of texts, and `typed` gives
them their types. A parameter's name is its tag. A tag without the token is text, so that a value may hold XML. The
template writes no null: it leaves an object's member out. `tagged` reads the calls. Where the template is silent:

- A value whose tags are all `<item>` is a list, one with other tags an object. A tag twice in an object is MALFORMED.
- Where no schema states a type, a text that is JSON is that value, but `null` is the text.
- `tool_call` and `invoke` are never the names of a parameter.
- Reasoning stands between `<mm:think>` and `</mm:think>`. An action that begins with `</mm:think>` has none: the
  template prints so for an action without reasoning, and where the prompt leaves the choice, the model writes it.
"""

from __future__ import annotations

import re

from orl_core.tools.marked import Mark
from orl_core.tools.scan import Scan
from orl_core.tools.tagged import Kind, Tag, TagSyntax
from orl_core.tools.wire_format import WireFormat

SPACE = "]<]minimax[>["  # the template calls the token its name space
_THINKING = ("<mm:think>", "</mm:think>")
_BLOCK = ("<tool_call>", "</tool_call>")  # a part of a tag behind SPACE alone; a vocabulary may hold them as tokens
_KINDS: dict[str, Kind] = {"<tool_call>": "open", "</tool_call>": "close", "</invoke>": "called"}
_TAG = re.compile(r"""\s*+(<(?:invoke\s++name="([^"<>\n]*+)"|(/?+)([^<>/\s][^<>\n]*+))>)""")


def _tag(scan: Scan, mark: Mark) -> Tag | None:
    found = _TAG.match(scan.text, mark.end) if mark.delimiter == SPACE else None
    if found is None:
        return None
    spelled, tool, slash, name = found.groups()
    kind = "call" if tool is not None else _KINDS.get(spelled, "value end" if slash else "key")
    return Tag(kind=kind, start=mark.start, end=found.end(), name=(tool or name or "").strip())


_SYNTAX = TagSyntax(
    tag=_tag,
    call=f'{SPACE}<invoke name="a_tool">',
    called=f"{SPACE}</invoke>",
    key=f"{SPACE}<a_name>",
    value_end=f"{SPACE}</a_name>",
    item="item",
)

MINIMAX_M3 = WireFormat(
    delimiters=(SPACE, *_THINKING, *_BLOCK),
    thinking=_THINKING,
    blocks={SPACE: _SYNTAX},
    unopened=True,
    carries_texts=True,
    nested=True,
)
