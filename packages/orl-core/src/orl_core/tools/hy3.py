"""The wire format of Hy3: `<tool_calls>⏎<tool_call>NAME<tool_sep>⏎<arg_key>x</arg_key>⏎<arg_value>…</arg_value>⏎…`.

It must not know tools, schemas or tokens: arguments leave it as texts, exactly as written, and `typed` gives them their
types. The preview's tags are as above. The released checkpoint has a suffix in every tag: `<tool_calls:opensource>`.
`tagged` reads the calls. Where the template is silent:

- White space between tags is free. A name ends at `<tool_sep>`, and a call without it is MALFORMED.
- `<arg_key>`, `</arg_key>` and `<arg_value>` stand in this order, or the call is MALFORMED.
"""

from __future__ import annotations

from itertools import pairwise

from orl_core.tools.marked import Mark
from orl_core.tools.scan import Scan
from orl_core.tools.tagged import Kind, Tag, TagSyntax
from orl_core.tools.wire_format import WireFormat


def _format(suffix: str) -> WireFormat:
    """Return the format with one suffix in its tags."""
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
        """Return the tag at the next mark, which for a call and a key goes on up to the last mark of its header."""
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
    )
    return WireFormat(
        delimiters=(*calls, *call, separator, *key, *value, *thought),
        thinking=thought,
        blocks={calls[0]: syntax},
        carries_texts=True,
    )


HY3_PREVIEW, HY3 = _format(""), _format(":opensource")
