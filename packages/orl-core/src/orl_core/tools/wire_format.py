"""A wire format: its delimiters, and the readers of what they open.

It knows marks, text, reasoning and order, and nothing of the inside of a block.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence

from msgspec import Struct, structs

from orl_core.messages import ToolSpec
from orl_core.tools.scan import Marked, Parsed, Scan
from orl_core.tools.tagged import TagSyntax, read_block
from orl_core.tools.typed import typed

THINKING = ("<think>", "</think>")
Reader = Callable[[Scan], None]


class WireFormat(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One wire format. `thinking` are the delimiters of reasoning.

    `readers`: read the calls behind a delimiter, or nothing (`frame`). `blocks`: delimiters that can open a block of
    tags. `bare`: reads calls that no delimiter opens, at the start of the text and after reasoning; nothing if there
    are none. `text_frames`: delimiters around text, part of nothing. `prepared`: changes the marks before they are
    read. `unopened`: an action may begin with the end of reasoning. `carries_texts`: arguments are texts, typed by the
    tool's schema; `nested` and `python` as for `typed`.
    """

    delimiters: tuple[str, ...]
    thinking: tuple[str, str] = THINKING
    readers: Mapping[str, Reader] = {}
    blocks: Mapping[str, TagSyntax] = {}
    bare: Reader | None = None
    text_frames: Collection[str] = ()
    prepared: Callable[[Marked], Marked] | None = None
    unopened: bool = False
    carries_texts: bool = False
    nested: bool = False
    python: bool = False

    def within(self, frame: WireFormat) -> WireFormat:
        """Return a format of these calls, among the reasoning and the text frames of a model's own format `frame`."""
        calls = [text for text in self.delimiters if text not in {*self.thinking, *self.text_frames}]

        def prepared(marked: Marked) -> Marked:
            for prepare in filter(None, (frame.prepared, self.prepared)):
                marked = prepare(marked)
            return marked

        return structs.replace(
            self,
            delimiters=tuple(dict.fromkeys((*calls, *frame.delimiters))),
            thinking=frame.thinking,
            text_frames=frame.text_frames,
            prepared=prepared,
            unopened=frame.unopened,
        )

    def read(self, marked: Marked, tools: Sequence[ToolSpec], *, reasoning_opened: bool) -> Parsed:
        """Return the action in `marked`, its arguments typed, and the places of its parts. Total.

        `reasoning_opened`: the prompt has already opened the reasoning.
        """
        action, spans = self.parse(marked, reasoning_opened=reasoning_opened)
        if action.calls and self.carries_texts:
            action = typed(action, tools, nested=self.nested, python=self.python)
        return action, spans

    def parse(self, marked: Marked, *, reasoning_opened: bool) -> Parsed:
        """Read everything in `marked`, in order: text, reasoning, and calls with arguments as they are written."""
        scan = Scan(self.prepared(marked) if self.prepared else marked)
        if reasoning_opened or (self.unopened and _begins_with(scan, self.thinking[1])):
            scan.think(self.thinking[1])
        self._read_bare(scan)
        while scan.index < len(scan.marks):
            delimiter = scan.marks[scan.index].delimiter
            if delimiter == self.thinking[0]:
                scan.say_to_mark()
                scan.think(self.thinking[1])
                if not scan.said:
                    self._read_bare(scan)
            elif (syntax := self.blocks.get(delimiter)) and (tag := syntax.opening(scan)):
                read_block(scan, syntax, tag)
                scan.tell("calls")
            elif reader := self.readers.get(delimiter):
                scan.say_to_mark()
                reader(scan)
                scan.tell("calls")
            elif delimiter in self.text_frames:
                scan.say_to_mark()
            else:
                scan.index += 1
        return scan.parsed()

    def _read_bare(self, scan: Scan) -> None:
        start = scan.at
        if self.bare is not None:
            self.bare(scan)
        if scan.at > start:
            scan.tell("calls")


def bare(reader: Reader, opening: re.Pattern[str]) -> Reader:
    """Return a reader of calls that no delimiter opens: they begin with `opening`, or there are none."""

    def read(scan: Scan) -> None:
        if opening.match(scan.text, scan.at):
            reader(scan)

    return read


def frame(_: Scan) -> None:
    """Read nothing: the delimiter is around calls."""


def _begins_with(scan: Scan, delimiter: str) -> bool:
    """Return whether the first mark is `delimiter`, with nothing but white space before it."""
    first = scan.marks[0] if scan.marks else None
    return first is not None and first.delimiter == delimiter and not scan.text[: first.start].strip()
