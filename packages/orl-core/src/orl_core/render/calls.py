"""Reading an action's ids: which ids are delimiters, what is text, and whether the prompt has opened the reasoning.

It knows vocabularies and marks, and leaves the meaning of the marks to the wire format's parser in `orl_core.tools`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from orl_core.errors import RenderError, boundary
from orl_core.messages import Action, ToolCall, ToolSpec
from orl_core.render.conversation import call_dict, call_id
from orl_core.render.plan import DUMMY_TOOL, Plans
from orl_core.tools import TOOL_FORMATS, Mark, Marked, ToolFormat, delimiters, parse, parse_marked
from orl_core.tools.format import for_chat_template
from orl_core.tools.marked import spellings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orl_core.render.controls import Controls
    from orl_core.render.tokenizer import Tokenizer

DUMMY_CALL = ToolCall(name=DUMMY_TOOL.name, arguments={"where": "the attic", "how": [1, {"deep": None}]})
_DUMMY_SCHEMA = {"type": "object", "properties": {"where": {"type": "string"}, "how": {"type": "array"}}}
DUMMY_TOOLS = (ToolSpec(name=DUMMY_TOOL.name, parameters=_DUMMY_SCHEMA),)  # what types the dummy call has, for parsers


class CallReader:
    """Splits an action's ids at the delimiters of one wire format.

    Raises:
        RenderError: the prompt opens reasoning before some actions and not before others.
    """

    def __init__(self, tokenizer: Tokenizer, controls: Controls, plans: Plans, tool_format: ToolFormat) -> None:
        self._tokenizer = tokenizer
        self._format: ToolFormat = tool_format
        held = [text for text in delimiters(tool_format) if text in controls.ids]
        self._delimiters = {controls.ids[text]: text for text in held}
        self._spelled = tuple(text for text in delimiters(tool_format) if text not in controls.ids)
        self.reasoning_opened = _reasoning_opened(tokenizer, plans)

    def read(self, ids: Sequence[int], tools: Sequence[ToolSpec] = ()) -> Action:
        """The action that `ids` say, their stop token already taken off. Total. `tools`: as for `parse_marked`."""
        texts: list[str] = []
        marks: list[Mark] = []
        size = start = 0
        for place in [*(place for place, token in enumerate(ids) if token in self._delimiters), len(ids)]:
            plain = self._tokenizer.decode(ids[start:place]) if start < place else ""
            marks.extend(spellings(plain, self._spelled, size))
            texts.append(plain)
            size += len(plain)
            if place < len(ids):
                delimiter = self._delimiters[ids[place]]
                marks.append(Mark(start=size, end=size + len(delimiter), delimiter=delimiter))
                texts.append(delimiter)
                size += len(delimiter)
            start = place + 1
        marked = Marked(text="".join(texts), marks=tuple(marks))
        return parse_marked(marked, self._format, tools=tools, reasoning_opened=self.reasoning_opened)


def render_call(tokenizer: Tokenizer, *, tools: bool) -> str:
    """The template's own rendering of one dummy call, as `_as_written` leaves it.

    Raises:
        RenderError: the template raises.
    """
    call = call_dict(DUMMY_CALL.name, DUMMY_CALL.arguments, call=call_id(0))
    user = {"role": "user", "content": "Hi."}
    messages = [user, {"role": "assistant", "content": "", "tool_calls": [call]}]
    specs = for_chat_template([DUMMY_TOOL]) if tools else None
    with boundary(RenderError, "applying the chat template to a tool call"):
        whole = tokenizer.apply_chat_template(messages, tools=specs, add_generation_prompt=False)
        prompt = tokenizer.apply_chat_template([user], tools=specs, add_generation_prompt=False)
        asked = tokenizer.apply_chat_template([user], tools=specs, add_generation_prompt=True)
    return _as_written(tokenizer, whole.removeprefix(prompt), asked.removeprefix(prompt))


def _as_written(tokenizer: Tokenizer, rendered: str, generation_prompt: str) -> str:
    """A rendered action as the model writes it, so that a format without delimiters begins where it should.

    The generation prompt, where the template prints the same before a past action, and the closing stop token are off.
    """
    action = rendered.removeprefix(generation_prompt)
    for text, token in tokenizer.added_tokens.items():
        if token in tokenizer.stop_ids and action.rstrip().endswith(text):
            return action.rstrip().removesuffix(text)
    return action


def detect_format(tokenizer: Tokenizer) -> ToolFormat:
    """The format whose parser reads back the call that the template has rendered.

    Raises:
        RenderError: none does.
    """
    seen: list[str] = []
    for tools in (False, True):
        rendered = render_call(tokenizer, tools=tools)
        for tool_format in TOOL_FORMATS:
            if parse(rendered, tool_format, tools=DUMMY_TOOLS).calls == (DUMMY_CALL,):
                return tool_format
        seen.append(rendered)
    raise RenderError(
        f"the chat template renders a tool call as {seen[-1]!r}, which none of the supported formats "
        f"({', '.join(TOOL_FORMATS)}) reads; where the model is told its format otherwise, state `tool_format`"
    )


def _reasoning_opened(tokenizer: Tokenizer, plans: Plans) -> bool:
    """Whether a generation prompt ends inside reasoning, the same for every way to get there."""
    with boundary(RenderError, "applying the chat template"):
        first = tokenizer.apply_chat_template(
            [{"role": "user", "content": "Hi."}], tools=None, add_generation_prompt=True
        )
    prompts = {
        "the first message": first,
        "a tool result": plans.tail(("tool",)),
        "a user message": plans.tail(("user",)),
    }
    opened = {after: text.rfind("<think>") > text.rfind("</think>") for after, text in prompts.items()}
    if len(set(opened.values())) > 1:
        raise RenderError(f"the prompt opens reasoning after some messages only: {opened}")
    return opened["the first message"]
