"""Read an action's ids: delimiters, text, and whether the prompt has opened the reasoning."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence

from orl_core.errors import RenderError
from orl_core.messages import Action, Role, Span, ToolSpec
from orl_core.render.controls import Controls
from orl_core.render.dummy import HELLO
from orl_core.render.plan import Plans
from orl_core.render.tokenizer import Tokenizer
from orl_core.tools import Mark, Marked, ToolFormat, wire_format
from orl_core.tools.scan import spellings

_LONGEST = 4  # ids that one character may take: as many as it has bytes


class Places:
    """Positions in the text that `ids` decode to, converted to positions in its ids.

    Characters do not add up over ids: several ids may encode one character, each of them U+FFFD alone. A position is
    therefore found by decoding ids together. Positions are asked for in order, and each search begins at the last one,
    so that every id is decoded a few times only. `before` counts the characters and the ids of the action before them.
    """

    def __init__(
        self, decode: Callable[[Sequence[int]], str], ids: Sequence[int], text: str, before: tuple[int, int] = (0, 0)
    ) -> None:
        self.before = before
        self._decode = decode
        self._ids = ids
        self._text = text
        self._character = self._id = 0  # where the next search begins

    def place(self, character: int) -> int:
        """Return the number of ids that cover the first `character` characters.

        `character` must not be smaller than it was the last time.
        """
        if character >= len(self._text):
            return len(self._ids)
        if character <= self._character:
            return self._id
        text = self._text[self._character : character]
        start, most = self._id, len(self._ids) - self._id
        high = min(1, most)
        while high < most and not self._says(start + high, text):
            high = min(2 * high, most)
        place = start + bisect_left(range(high), True, key=lambda size: self._says(start + size, text))
        self._begin(place)
        return place

    def _says(self, end: int, text: str) -> bool:
        return self._decode(self._ids[self._id : end]).startswith(text)

    def _begin(self, place: int) -> None:
        """Begin the next search at `place`, or a few ids before it, so that no character is incomplete."""
        for end in range(place, max(self._id, place - _LONGEST), -1):
            text = self._decode(self._ids[self._id : end])
            if not text.endswith("\ufffd") and self._text.startswith(text, self._character):
                self._character, self._id = self._character + len(text), end
                return


class CallReader:
    """Splits an action's ids at the delimiters of one wire format.

    `frame` is the format of the model's reasoning and text; None is that of its calls.
    """

    def __init__(
        self, tokenizer: Tokenizer, controls: Controls, tool_format: ToolFormat, frame: ToolFormat | None = None
    ) -> None:
        self._tokenizer = tokenizer
        self.format: ToolFormat = tool_format
        calls, around = wire_format(tool_format), wire_format(frame or tool_format)
        self.wire = calls if calls is around else calls.within(around)
        self._delimiters = {controls.ids[text]: text for text in self.wire.delimiters if text in controls.ids}
        self._spelled = tuple(text for text in self.wire.delimiters if text not in controls.ids)

    def read(
        self, ids: Sequence[int], tools: Sequence[ToolSpec], *, reasoning_opened: bool
    ) -> tuple[Action, tuple[Span, ...]]:
        """Return the action that `ids` say, their stop token already taken off, and the ids of its parts. Total.

        `tools`: as for `parse`.
        """
        texts: list[str] = []
        marks: list[Mark] = []
        pieces: list[Places] = []
        size = start = 0
        for place in [*(place for place, token in enumerate(ids) if token in self._delimiters), len(ids)]:
            plain = self._tokenizer.decode(ids[start:place]) if start < place else ""
            marks.extend(spellings(plain, self._spelled, size))
            pieces.append(Places(self._tokenizer.decode, ids[start:place], plain, (size, start)))
            texts.append(plain)
            size += len(plain)
            if place < len(ids):
                delimiter = self._delimiters[ids[place]]
                marks.append(Mark(start=size, end=size + len(delimiter), delimiter=delimiter))
                texts.append(delimiter)
                size += len(delimiter)
            start = place + 1
        marked = Marked(text="".join(texts), marks=tuple(marks))
        action, spans = self.wire.read(marked, tools, reasoning_opened=reasoning_opened)
        return action, _in_ids(spans, marked.text, pieces)


def _in_ids(spans: Sequence[Span], text: str, pieces: Sequence[Places]) -> tuple[Span, ...]:
    """Return `spans` in ids. An id with text of two parts belongs to the first.

    White space between a part and the next one, or the end, is added to it.
    """
    places: list[Span] = []
    for number, span in enumerate(spans, 1):
        following = spans[number].start if number < len(spans) else len(text)
        end = following if not text[span.end : following].strip() else span.end
        places.append(Span(part=span.part, start=_place(span.start, pieces), end=_place(end, pieces)))
    return tuple(places)


def _place(character: int, pieces: Sequence[Places]) -> int:
    """Return how many ids it takes to say the first `character` characters."""
    piece = pieces[bisect_right(pieces, character, key=lambda piece: piece.before[0]) - 1]
    characters, ids = piece.before
    return ids + piece.place(character - characters)


def reasoning_opened(plans: Plans, roles: Sequence[Role], tool_format: ToolFormat) -> dict[Role, bool]:
    """Return whether the prompt after the first message (`user`) and after messages of these roles opens reasoning."""
    opened: dict[Role, bool] = {role: opens(plans.tail((role,)), tool_format) for role in roles}
    at_first = opens(plans.apply(HELLO, plans.tools), tool_format)
    if opened.setdefault("user", at_first) != at_first:
        raise RenderError(f"the prompt opens reasoning after some user messages only: first {at_first}, later not so")
    return opened


def opens(prompt: str, tool_format: ToolFormat) -> bool:
    """Return whether the prompt ends inside reasoning."""
    opening, closing = wire_format(tool_format).thinking
    return prompt.rfind(opening) > prompt.rfind(closing)
