"""A text with its delimiters marked, a parser's position in it, and the findings so far.

The renderer marks control ids, `mark` finds spellings (law L4). A parser trusts marks alone, and knows no tokens. Marks
are passed once and in order. No reader looks back, so parsing is linear.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from functools import cache

from msgspec import Struct, structs

from orl_core.messages import Action, FailureKind, ParseFailure, Part, Span, ToolCall


class Mark(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A delimiter at `text[start:end]` of the marked text."""

    start: int
    end: int
    delimiter: str


class Marked(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A text and its delimiters, in order and without overlap. Everything unmarked is plain text."""

    text: str
    marks: tuple[Mark, ...] = ()


def mark(text: str, delimiters: Collection[str]) -> Marked:
    """Return `text` with every spelling of a delimiter marked, the leftmost and longest first."""
    return Marked(text=text, marks=tuple(spellings(text, delimiters, 0)))


def spellings(text: str, delimiters: Collection[str], offset: int) -> Iterable[Mark]:
    """Return the marks of the delimiters that `text` spells, moved by `offset`."""
    for match in _pattern(tuple(delimiters)).finditer(text) if delimiters else ():
        yield Mark(start=match.start() + offset, end=match.end() + offset, delimiter=match.group())


@cache
def _pattern(delimiters: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(re.escape(delimiter) for delimiter in sorted(delimiters, key=len, reverse=True)))


Parsed = tuple[Action, tuple[Span, ...]]  # and the ranges of its parts, in characters


class Scan:
    """A position in a marked text: `at` counts characters, `index` is the first mark that is not passed.

    `begin` is the start of the part that is being read: the end of the last text, or of the last part.
    """

    def __init__(self, marked: Marked) -> None:
        self.text = marked.text
        self.marks = marked.marks
        self.at = self.index = self.begin = 0
        self.calls: list[ToolCall | ParseFailure] = []
        self.said: list[str] = []
        self.thought: list[str] = []
        self.spans: list[Span] = []

    def say(self, end: int) -> None:
        """Take the part before `end` as text; go there."""
        if spoken := self.text[self.at : end].strip():
            self.said.append(spoken)
        self.at = self.begin = end

    def say_to_mark(self) -> None:
        """Take the part before the next mark as text; go behind that mark."""
        self.say(self.marks[self.index].start)
        self.pass_mark()

    def pass_mark(self) -> None:
        """Go behind the next mark."""
        self.at = self.marks[self.index].end
        self.index += 1

    def jump(self, place: int) -> None:
        """Go to `place`; marks that begin before it are part of what was read."""
        while self.index < len(self.marks) and self.marks[self.index].start < place:
            self.index += 1
        self.at = place

    def go(self, place: int, delimiters: Collection[str]) -> Mark | None:
        """Go to the first of `delimiters` that begins at `place` or after it; None: to the end of the text."""
        while self.index < len(self.marks):
            mark = self.marks[self.index]
            if mark.start >= place and mark.delimiter in delimiters:
                self.at = mark.start
                return mark
            self.index += 1
        self.at = len(self.text)
        return None

    def fork(self) -> Scan:
        """Return a new scan at this place, without findings."""
        scan = Scan(Marked(text=self.text, marks=self.marks))
        scan.at, scan.index, scan.begin = self.at, self.index, self.begin
        return scan

    def think(self, end: int) -> None:
        """Take the part before `end` as reasoning; go there."""
        if thought := self.text[self.at : end].strip():
            self.thought.append(thought)
        self.jump(end)

    def tell(self, part: Part) -> None:
        """Record the range between `begin` and here as `part`."""
        self.spans.append(Span(part=part, start=self.begin, end=self.at))
        self.begin = self.at

    def give_id(self, id_: object) -> None:
        """Give the last call the id that the model wrote, if it is one."""
        if isinstance(id_, str | int):
            self.calls[-1] = structs.replace(self.calls[-1], id=str(id_))

    def fail(self, kind: FailureKind, message: str, start: int, *, name: str = "") -> None:
        """Record the text between `start` and here as a call that cannot be made."""
        body = self.text[start : self.at].strip()
        self.calls.append(ParseFailure(kind=kind, message=one_line(message), text=body, name=name))

    def parsed(self) -> Parsed:
        """Return all that was found, the rest of the text included."""
        self.say(len(self.text))
        action = Action(text="\n".join(self.said), reasoning="\n".join(self.thought), calls=tuple(self.calls))
        return action, tuple(self.spans)


def one_line(message: str) -> str:
    """Return `message` without line breaks, and of a length that a model can read."""
    return " ".join(message.split())[:500]
