"""Formats with tags that name the tool and each parameter.

    Qwen3-Coder, 3.5  <tool_call>⏎<function=NAME>⏎<parameter=x>⏎…⏎</parameter>⏎</function>⏎</tool_call>
    Seed-OSS          <seed:tool_call>⏎<function=NAME>⏎<parameter=x>…</parameter>⏎</function>⏎</seed:tool_call>
    MiniMax-M2        <minimax:tool_call>⏎<invoke name="NAME">⏎<parameter name="x">…</parameter>⏎</invoke>⏎…
    MiniMax-M3        §<tool_call>⏎§<invoke name="NAME">§<x>1§</x>§<list>§<item>a§</item>§</list>§</invoke>⏎…
    Hy3               <tool_calls>⏎<tool_call>NAME<tool_sep>⏎<arg_key>x</arg_key>⏎<arg_value>…</arg_value>⏎…

They must not know tools, schemas or tokens: arguments are texts, exactly as written, and `typed` gives them their
types. `tagged` reads the tags and decides what the formats leave open; outside its block a tag is text, unless it
begins a whole call.

- Qwen3-Coder: one newline at either end of a value belongs to the format.
- Seed-OSS: the template writes lists, objects and booleans as Python does. Notes on the budget of reasoning, inside
  `<seed:think>`, are part of the reasoning.
- MiniMax-M3: all tags begin with the token `]<]minimax[>[`, here `§`; a tag without it is text. A value whose tags are
  all `<item>` is a list, one with other tags an object, in which a tag twice is MALFORMED. The template writes no null:
  if no schema states a type, `null` is a text. `tool_call` and `invoke` are never names of a parameter. An action that
  begins with `</mm:think>` has no reasoning.
- Hy3: the released checkpoint has a suffix in every tag, `<tool_calls:opensource>`, its preview has none. White space
  between tags is free. A name ends at `<tool_sep>`; a call without it, or with tags in another order, is MALFORMED.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from itertools import pairwise

from orl_core.names import ToolFormat
from orl_core.tools.format import Spelling, array, lines, writer
from orl_core.tools.scan import Mark, Scan
from orl_core.tools.tagged import Kind, Tag, TagSyntax, named_tag
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


def _hy3(suffix: str, *examples: str) -> WireFormat:
    """Return Hy3's format with one suffix in its tags."""
    calls, call, key, value, thought = (
        (f"<{name}{suffix}>", f"</{name}{suffix}>")
        for name in ("tool_calls", "tool_call", "arg_key", "arg_value", "think")
    )
    separator = f"<tool_sep{suffix}>"
    kinds: dict[str, Kind] = {
        **{calls[0]: "open", calls[1]: "close", call[0]: "call", call[1]: "called", value[1]: "value end"},
        **dict.fromkeys((separator, *key, value[0]), "key"),
    }
    headers = {call[0]: (separator,), key[0]: (key[1], value[0])}

    def tag(scan: Scan, mark: Mark) -> Tag | None:
        """Return the tag at the next mark. A call and a key end at the last mark of their header."""
        kind = kinds.get(mark.delimiter)
        header = headers.get(mark.delimiter, ())
        following = scan.marks[scan.index + 1 : scan.index + 1 + len(header)]
        ends = scan.index + 1 == len(scan.marks) and mark.delimiter in {separator, key[1], value[0]}
        if kind is None or ends or len(following) < len(header):
            return None  # nothing, or the text ends inside a header
        named = bool(header) and tuple(mark.delimiter for mark in following) == header
        between = [scan.text[mark.end : after.start] for mark, after in pairwise(following)]
        if not named or any(text.strip() for text in between):
            return Tag(kind=kind, start=mark.start, end=mark.end)
        name = scan.text[mark.end : following[0].start].strip()
        return Tag(kind=kind, start=mark.start, end=following[-1].end, name=name)

    syntax = TagSyntax(
        tag=tag,
        call=f"{call[0]}a_tool{separator}",
        called=call[1],
        key=f"{key[0]}a_name{key[1]}{value[0]}",
        value_end=value[1],
        block=calls[0],
    )
    return WireFormat(
        delimiters=(*calls, *call, separator, *key, *value, *thought),
        spelling=Spelling(
            write=writer(
                f"{calls[0]}\n{call[0]}%(name)s{separator}\n%(arguments)s{call[1]}\n{calls[1]}",
                f"{key[0]}%(key)s{key[1]}\n{value[0]}%(value)s{value[1]}\n",
            ),
            examples=(examples,),
        ),
        thinking=thought,
        blocks={calls[0]: syntax},
        carries_texts=True,
    )


_M3_SPACE = "]<]minimax[>["  # the template calls the token its name space
_M3_THINKING = ("<mm:think>", "</mm:think>")
_M3_BLOCK = (
    "<tool_call>",
    "</tool_call>",
)  # parts of tags behind _M3_SPACE; a vocabulary may hold them as tokens
_M3_KINDS: dict[str, Kind] = {"<tool_call>": "open", "</tool_call>": "close", "</invoke>": "called"}
_M3_TAG = re.compile(r"""\s*+(<(?:invoke\s++name="([^"<>\n]*+)"|(/?+)([^<>/\s][^<>\n]*+))>)""")


def _m3_tag(scan: Scan, mark: Mark) -> Tag | None:
    match = _M3_TAG.match(scan.text, mark.end) if mark.delimiter == _M3_SPACE else None
    if match is None:
        return None
    spelled, tool, slash, name = match.groups()
    kind = "call" if tool is not None else _M3_KINDS.get(spelled, "value end" if slash else "key")
    return Tag(kind=kind, start=mark.start, end=match.end(), name=(tool or name or "").strip())


_M3_SYNTAX = TagSyntax(
    tag=_m3_tag,
    call=f'{_M3_SPACE}<invoke name="a_tool">',
    called=f"{_M3_SPACE}</invoke>",
    key=f"{_M3_SPACE}<a_name>",
    value_end=f"{_M3_SPACE}</a_name>",
    item="item",
    block=f"{_M3_SPACE}<tool_call>",
)

_TAGGED = lines("<tools>\n", "</tools>", bare=True, around=("<tool>", "</tool>"))
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
            show=_TAGGED,
            families=("minimax-m2", "minimax-m2.5", "minimax-m2.7"),
            examples=(("<minimax:tool_call>",),),
        ),
        quote='"',
    ),
    "minimax_m3": WireFormat(
        delimiters=(_M3_SPACE, *_M3_THINKING, *_M3_BLOCK),
        spelling=Spelling(
            write=writer(
                f'{_M3_SPACE}<tool_call>\n{_M3_SPACE}<invoke name="%(name)s">%(arguments)s{_M3_SPACE}</invoke>\n'
                f"{_M3_SPACE}</tool_call>",
                f"{_M3_SPACE}<%(key)s>%(value)s{_M3_SPACE}</%(key)s>",
            ),
            show=_TAGGED,
            examples=((_M3_SPACE,),),
        ),
        thinking=_M3_THINKING,
        blocks={_M3_SPACE: _M3_SYNTAX},
        unopened=True,
        call_ends_reasoning=False,
        carries_texts=True,
        nested=True,
    ),
    "hy3": _hy3(":opensource", "<tool_call:opensource>"),
    "hy3_preview": _hy3("", "<tool_calls>", "<tool_sep>"),
}
