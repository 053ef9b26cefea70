"""The wire format of Hy3: `<tool_calls>⏎<tool_call>NAME<tool_sep>⏎<arg_key>x</arg_key>⏎<arg_value>…</arg_value>⏎…`.

It must not know tools, schemas or tokens: arguments leave it as texts, exactly as written, and `typed` gives them their
types. The preview's tags are as above. The released checkpoint has a suffix in every tag: `<tool_calls:opensource>`.
`tagged` reads the calls. Where the template is silent:

- White space between tags is free. A name ends at `<tool_sep>`, and a call without it is MALFORMED.
- `<arg_key>`, `</arg_key>` and `<arg_value>` stand in this order, or the call is MALFORMED.
"""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING

from orl_core.tools.scan import read
from orl_core.tools.tagged import Dialect, Kind, Tag, read_block

if TYPE_CHECKING:
    from orl_core.tools.marked import Mark, Marked
    from orl_core.tools.scan import Parsed, Scan


class Hy3:
    """The format with one suffix in its tags."""

    def __init__(self, suffix: str) -> None:
        calls, call, key, value, thought = (
            (f"<{name}{suffix}>", f"</{name}{suffix}>")
            for name in ("tool_calls", "tool_call", "arg_key", "arg_value", "think")
        )
        separator = f"<tool_sep{suffix}>"
        self.DELIMITERS = (*calls, *call, separator, *key, *value, *thought)
        self.THINKING = thought
        self._kinds: dict[str, Kind] = {
            **{calls[0]: "open", calls[1]: "close", call[0]: "call", call[1]: "called", value[1]: "value end"},
            **dict.fromkeys((separator, *key, value[0]), "key"),
        }
        self._inner = frozenset({separator, key[1], value[0]})
        self._headers = {call[0]: (separator,), key[0]: (key[1], value[0])}
        self._opening = calls[0]
        self._dialect = Dialect(
            tag=self._tag,
            call=f"{call[0]}a_tool{separator}",
            called=call[1],
            key=f"{key[0]}a_name{key[1]}{value[0]}",
            value_end=value[1],
        )

    def parse(self, marked: Marked, *, reasoning_opened: bool = False) -> Parsed:
        """Read everything in `marked`, in order, arguments as texts."""
        readers = {self._opening: partial(read_block, dialect=self._dialect)}
        return read(marked, readers, reasoning_opened=reasoning_opened, thinking=self.THINKING)

    def _tag(self, scan: Scan, mark: Mark) -> Tag | None:
        """The tag at the next mark, which for a call and a key goes on up to the last mark of its header."""
        kind = self._kinds.get(mark.delimiter)
        header = self._headers.get(mark.delimiter, ())
        following = scan.marks[scan.index + 1 : scan.index + 1 + len(header)]
        ends = scan.index + 1 == len(scan.marks) and mark.delimiter in self._inner
        if kind is None or ends or len(following) < len(header):
            return None  # nothing, or the text ends inside a header
        named = bool(header) and tuple(mark.delimiter for mark in following) == header
        between = [scan.text[mark.end : after.start] for mark, after in pairwise(following)]
        if not named or any(text.strip() for text in between):
            return Tag(kind=kind, start=mark.start, end=mark.end)
        name = scan.text[mark.end : following[0].start].strip()
        return Tag(kind=kind, start=mark.start, end=following[-1].end, name=name)


PREVIEW, RELEASED = Hy3(""), Hy3(":opensource")
