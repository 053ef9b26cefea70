"""A wire format: its delimiters, the readers of what they open, and how it writes calls and shows tools.

It knows marks, text, reasoning and order, and nothing of the inside of a block but how a call begins. What it decides
for all formats, where the model was shown tools:

- A whole call that ends the text without its opening is UNOPENED, or made if the family's own parsers make it. What is
  only mentioned has words behind it.
- Reasoning ends at its tag, or with the text. If it is never closed, calls that end the text end it: they are made if
  the family's own parsers make them, otherwise they are IN_REASONING.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence

from msgspec import Struct, structs

from orl_core.messages import FailureKind, ParseFailure, ToolCall, ToolSpec
from orl_core.tools.format import Spelling
from orl_core.tools.scan import Marked, Parsed, Scan
from orl_core.tools.tagged import TagSyntax, read_block, read_unopened
from orl_core.tools.typed import typed

THINKING = ("<think>", "</think>")
_WORD = r"(?<![\w.:-])[\w.:-]++"  # the name of a tool, or an id that holds it
# How a call begins, in any format: JSON, a name and what follows it, or nothing but the name of a tool.
_CALL = re.compile(
    r'(?:\[\s*+)?+\{\s*+"(?:(?:tool_)?name|arguments|parameters|tool_call_id)"\s*+:'
    rf"|(?:\[\s*+)?+{_WORD}(?:[({{]|\s*+(?:<arg_key>|<｜tool▁sep｜>|<\|tool_call_argument_begin\|>))"  # noqa: RUF001
    rf"|({_WORD})\s*+(?:\[CALL_ID\][\w-]++\s*+)?+\Z"
)
# The id that a call begins with, in any format whose calls have ids: it names what cannot be read behind it.
_ID = re.compile(
    r'(?:\[\s*+)?+\{\s*+"tool_call_id"\s*+:\s*+"([^"\\]*+)"|[\w.-]++\s*+\[CALL_ID\]\s*+([\w-]++)|([\w.:-]*:[0-9]++)'
)
Reader = Callable[[Scan], object]


class WireFormat(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One wire format. `thinking` are the delimiters of reasoning.

    `readers`: read the calls behind a delimiter, or nothing (`frame`). `blocks`: delimiters that can open a block of
    tags. `bare`: how calls begin that no delimiter opens, at the start of the text and after reasoning, and what reads
    them. `text_frames`: delimiters around text, part of nothing. `prepared`: changes the marks before they are
    read. `carries_texts`: arguments are texts, typed by the tool's schema; `python` as for `typed`.

    `closings`: a delimiter inside or behind a call, and the opening that a call lacks if it is met outside of one.
    `call_ends_reasoning`: calls that end the text are made inside reasoning that is never closed.
    """

    delimiters: tuple[str, ...]
    spelling: Spelling
    thinking: tuple[str, str] = THINKING
    readers: Mapping[str, Reader] = {}
    blocks: Mapping[str, TagSyntax] = {}
    bare: tuple[re.Pattern[str], Reader] | None = None
    text_frames: Collection[str] = ()
    prepared: Callable[[Marked], Marked] = lambda marked: marked
    closings: Mapping[str, str] = {}
    call_ends_reasoning: bool = True
    carries_texts: bool = False
    python: bool = False

    def within(self, frame: WireFormat) -> WireFormat:
        """Return a format of these calls, among the reasoning and the text frames of a model's own format `frame`."""
        calls = [text for text in self.delimiters if text not in {*self.thinking, *self.text_frames}]

        def prepared(marked: Marked) -> Marked:
            return self.prepared(frame.prepared(marked))

        return structs.replace(
            self,
            delimiters=tuple(dict.fromkeys((*calls, *frame.delimiters))),
            thinking=frame.thinking,
            text_frames=frame.text_frames,
            prepared=prepared,
        )

    def read(self, marked: Marked, tools: Sequence[ToolSpec], *, reasoning_opened: bool) -> Parsed:
        """Return the action in `marked`, its arguments typed, and the places of its parts. Total.

        A call with a name and nothing else is made if its tool requires no argument.
        `reasoning_opened`: the prompt has already opened the reasoning.
        """
        offered = frozenset(tool.name for tool in tools)
        action, spans = self.parse(marked, offered, reasoning_opened=reasoning_opened)
        if action.calls and self.carries_texts:
            action = typed(action, tools, python=self.python)
        action = structs.replace(action, calls=tuple(map(_with_id, action.calls)))
        if any(_is_empty(call) for call in action.calls):
            free = {tool.name for tool in tools} - {tool.name for tool in tools if tool.parameters.get("required")}
            calls = [
                ToolCall(name=one.name, id=one.id) if _is_empty(one) and one.name in free else one
                for one in action.calls
            ]
            action = structs.replace(action, calls=tuple(calls))
        return action, spans

    def parse(self, marked: Marked, offered: frozenset[str], *, reasoning_opened: bool) -> Parsed:
        """Read everything in `marked`, in order: text, reasoning, and calls with arguments as they are written.

        `offered` names the tools. Without any, no call is looked for where a tag is missing.
        """
        scan = Scan(self.prepared(marked))
        if reasoning_opened:
            self._think(scan, offered)
        self._read_bare(scan)
        while scan.index < len(scan.marks):
            if scan.marks[scan.index].delimiter == self.thinking[0]:
                scan.say_to_mark()
                self._think(scan, offered)
                if not scan.said:
                    self._read_bare(scan)
            elif not offered or not self._read_unopened(scan, offered):
                self._read_marked(scan)
        return scan.parsed()

    def _read_marked(self, scan: Scan) -> None:
        """Read what the next mark opens; it is text if it opens nothing."""
        delimiter = scan.marks[scan.index].delimiter
        syntax = self.blocks.get(delimiter)
        if syntax and (tag := syntax.tag(scan, scan.marks[scan.index])) and tag.kind == "open":
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

    def _read_unopened(self, scan: Scan, offered: frozenset[str]) -> bool:
        """Read a call that lacks its opening, if the next mark is of one that ends the text; return whether."""
        mark, *following = scan.marks[scan.index : scan.index + 2]
        if any(read_unopened(scan, syntax, offered) for syntax in self.blocks.values()):
            return True
        opening = self.closings.get(mark.delimiter)
        if opening is None or (following and following[0].delimiter not in {*self.readers, *self.blocks}):
            return False
        end = following[0].start if following else len(scan.text)
        rest = scan.text[mark.end : end].strip()
        match = _CALL.search(scan.text, scan.at, mark.start)
        if (
            match is None
            or f"{rest[:1]}{rest[-1:]}" not in {"", "{}"}
            or not offered.issuperset(filter(None, match.groups()))
        ):
            return False
        scan.say(match.start())
        scan.jump(end)
        scan.fail(FailureKind.UNOPENED, f"the tool call has no {opening}; write {opening} before it", match.start())
        scan.tell("calls")
        return True

    def _think(self, scan: Scan, offered: frozenset[str]) -> None:
        """Read reasoning. If it is never closed, it ends before the calls that end the text."""
        closing, fork = self.thinking[1], scan.fork()
        closed = fork.go(scan.at, (closing,)) is not None
        end = self._last_calls(scan.fork()) if offered and not closed else fork.at
        scan.think(end)
        if closed:
            scan.pass_mark()
        scan.tell("reasoning")
        if not closed and end < len(scan.text) and not self.call_ends_reasoning:
            scan.jump(len(scan.text))
            wrong = f"the reasoning has no {closing}, and the call inside is not made; write {closing} before a call"
            scan.fail(FailureKind.IN_REASONING, wrong, end)
            scan.tell("calls")

    def _last_calls(self, scan: Scan) -> int:
        """Return where the calls begin that end the text. One that the end of the text cuts is no more than a mention.

        The length of the text is returned if there are none.
        """
        start = end = len(scan.text)
        while scan.index < len(scan.marks):
            self._read_marked(scan)
            if scan.spans and (scan.said or start == end):
                scan.said.clear()
                start = scan.spans[0].start
            if any(isinstance(call, ParseFailure) and call.kind is FailureKind.UNCLOSED for call in scan.calls):
                start = end
            scan.spans.clear()
            scan.calls.clear()
        return end if scan.text[scan.at :].strip() else start

    def _read_bare(self, scan: Scan) -> None:
        if self.bare is not None and self.bare[0].match(scan.text, scan.at):
            self.bare[1](scan)
            scan.tell("calls")


def frame(_: Scan) -> None:
    """Read nothing: the delimiter is around calls."""


def _with_id(call: ToolCall | ParseFailure) -> ToolCall | ParseFailure:
    """Return a failure with the id that its text begins with, if it has none."""
    match = _ID.match(call.text) if isinstance(call, ParseFailure) and not call.id else None
    return structs.replace(call, id=match[match.lastindex or 0]) if match else call


def _is_empty(call: ToolCall | ParseFailure) -> bool:
    """Return whether a call has a name and nothing for its arguments."""
    return isinstance(call, ParseFailure) and bool(call.name) and not call.text
