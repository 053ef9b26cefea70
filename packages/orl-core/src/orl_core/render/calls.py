"""Reading an action's ids: which ids are delimiters, what is text, and whether the prompt has opened the reasoning.

It knows vocabularies and marks, and leaves the meaning of the marks to the wire format's parser in `orl_core.tools`.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, NamedTuple

from orl_core.errors import RenderError, boundary
from orl_core.messages import Action, Span, ToolCall
from orl_core.render.conversation import Dialect, call_dict
from orl_core.render.dummy import DUMMY_TOOL, HELLO
from orl_core.render.places import Places
from orl_core.tools import TOOL_FORMATS, Mark, Marked, ToolFormat, delimiters, parse, read_marked, thinking
from orl_core.tools.format import for_chat_template
from orl_core.tools.marked import spellings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orl_core.messages import Role, ToolSpec
    from orl_core.render.controls import Controls
    from orl_core.render.plan import Plans
    from orl_core.render.tokenizer import Tokenizer

DUMMY_CALL = ToolCall(name=DUMMY_TOOL.name, arguments={"where": "the attic", "how": [1, {"deep": None}]})


class CallReader:
    """Splits an action's ids at the delimiters of one wire format."""

    def __init__(self, tokenizer: Tokenizer, controls: Controls, tool_format: ToolFormat) -> None:
        self._tokenizer = tokenizer
        self.format: ToolFormat = tool_format
        held = [text for text in delimiters(tool_format) if text in controls.ids]
        self._delimiters = {controls.ids[text]: text for text in held}
        self._spelled = tuple(text for text in delimiters(tool_format) if text not in controls.ids)

    def read(
        self, ids: Sequence[int], tools: Sequence[ToolSpec], *, reasoning_opened: bool
    ) -> tuple[Action, tuple[Span, ...]]:
        """The action that `ids` say, their stop token already taken off, and the ids of its parts. Total.

        `tools`: as for `parse_marked`.
        """
        texts: list[str] = []
        marks: list[Mark] = []
        pieces: list[_Piece] = []
        size = start = 0
        for place in [*(place for place, token in enumerate(ids) if token in self._delimiters), len(ids)]:
            plain = self._tokenizer.decode(ids[start:place]) if start < place else ""
            marks.extend(spellings(plain, self._spelled, size))
            pieces.append(_Piece(size, start, Places(self._tokenizer.decode, ids[start:place], plain)))
            texts.append(plain)
            size += len(plain)
            if place < len(ids):
                delimiter = self._delimiters[ids[place]]
                marks.append(Mark(start=size, end=size + len(delimiter), delimiter=delimiter))
                texts.append(delimiter)
                size += len(delimiter)
            start = place + 1
        marked = Marked(text="".join(texts), marks=tuple(marks))
        action, spans = read_marked(marked, self.format, tools=tools, reasoning_opened=reasoning_opened)
        return action, _in_ids(spans, marked.text, pieces)


class _Piece(NamedTuple):
    """Ids between two delimiters: where it begins, in characters and in ids, and the places in it."""

    character: int
    id: int
    places: Places


def _in_ids(spans: Sequence[Span], text: str, pieces: Sequence[_Piece]) -> tuple[Span, ...]:
    """`spans` in ids. An id whose text lies in two parts belongs to the first of them.

    White space between a part and the next one, or the end, is added to it.
    """
    found: list[Span] = []
    for number, span in enumerate(spans, 1):
        following = spans[number].start if number < len(spans) else len(text)
        end = following if not text[span.end : following].strip() else span.end
        found.append(Span(part=span.part, start=_place(span.start, pieces), end=_place(end, pieces)))
    return tuple(found)


def _place(character: int, pieces: Sequence[_Piece]) -> int:
    """How many ids it takes to say the first `character` characters."""
    piece = pieces[bisect_right(pieces, character, key=lambda piece: piece.character) - 1]
    return piece.id + piece.places.place(character - piece.character)


def render_call(plans: Plans, dialect: Dialect, tool_format: ToolFormat, *, tools: bool) -> tuple[str, bool]:
    """The template's own rendering of one dummy call as the model writes it, and whether that is inside reasoning.

    The generation prompt and the closing are off. Where the template prints no such prompt before a past call, what the
    two have in common is.

    Raises:
        RenderError: the template raises.
    """
    tokenizer, name = plans.tokenizer, DUMMY_CALL.name
    call = call_dict(name, DUMMY_CALL.arguments, call=dialect.call_id(0, name), as_text=dialect.arguments_as_text)
    messages = [*HELLO, {"role": "assistant", "content": "", "tool_calls": [call]}]
    specs = for_chat_template([DUMMY_TOOL]) if tools else None
    with boundary(RenderError, "applying the chat template to a tool call"):
        whole = tokenizer.apply_chat_template(messages, tools=specs, add_generation_prompt=False)
        prompt = tokenizer.apply_chat_template(HELLO, tools=specs, add_generation_prompt=True)
    end = next((stop for stop in plans.stops if whole.rstrip().endswith(stop)), "")
    whole = whole.rstrip().removesuffix(end) if end else whole
    if whole.startswith(prompt):
        return whole.removeprefix(prompt), _opens(prompt, tool_format)
    parts, shared = plans.controls.split(whole), plans.controls.split(prompt)
    same = next(place for place, (ours, theirs) in enumerate(zip(parts, shared, strict=False)) if ours != theirs)
    return "".join(parts[same:]), False


def dialect_of(plans: Plans, tool_format: ToolFormat) -> Dialect:
    """How this template wants calls. Kimi K2's ids say the call's name, which its format prints nowhere else."""
    return Dialect(arguments_as_text=plans.form(("tool",)).as_text, named_ids="kimi" in tool_format)


def detect_format(plans: Plans) -> ToolFormat:
    """The format whose parser reads back the call that the template has rendered.

    Raises:
        RenderError: none does.
    """
    seen: list[str] = []
    for tools in (False, True):
        for tool_format in TOOL_FORMATS:
            rendered, opened = render_call(plans, dialect_of(plans, tool_format), tool_format, tools=tools)
            if parse(rendered, tool_format, tools=[DUMMY_TOOL], reasoning_opened=opened).calls == (DUMMY_CALL,):
                return tool_format
            seen.append(rendered)
    raise RenderError(
        f"the chat template renders a tool call as {seen[-1]!r}, which none of the supported formats "
        f"({', '.join(TOOL_FORMATS)}) reads; where the model is told its format otherwise, state `tool_format`"
    )


def reasoning_opened(plans: Plans, roles: Sequence[Role], tool_format: ToolFormat) -> dict[Role, bool]:
    """Whether the prompt after the first message (`user`), and after new messages of these roles, opens reasoning.

    Raises:
        RenderError: it does so after the first user message and not after others, or the other way round.
    """
    with boundary(RenderError, "applying the chat template"):
        first = plans.tokenizer.apply_chat_template(HELLO, tools=None, add_generation_prompt=True)
    opened: dict[Role, bool] = {role: _opens(plans.tail((role,)), tool_format) for role in roles}
    at_first = _opens(first, tool_format)
    if opened.setdefault("user", at_first) != at_first:
        raise RenderError(f"the prompt opens reasoning after some user messages only: first {at_first}, later not so")
    return opened


def _opens(prompt: str, tool_format: ToolFormat) -> bool:
    opening, closing = thinking(tool_format)
    return prompt.rfind(opening) > prompt.rfind(closing)
