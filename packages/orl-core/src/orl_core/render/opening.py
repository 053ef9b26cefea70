"""The opening: first messages and tools through the model's own chat template, guarded (law L4).

Texts in messages and tools are guarded. The run's own `system_prompt_template` is not: its control strings count.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from orl_core.errors import RenderError, boundary
from orl_core.messages import Message, ToolSpec
from orl_core.render.controls import Controls, choose_guard, unguarded
from orl_core.render.conversation import Dialect, for_template
from orl_core.render.tokenizer import Tokenizer
from orl_core.text import clean, leaves_in, map_strings
from orl_core.tools.format import for_chat_template, for_system_prompt


class OpeningRenderer:
    """Renders first messages for one tokenizer. With a `system_prompt_template` the chat template sees no tools."""

    def __init__(
        self, tokenizer: Tokenizer, controls: Controls, dialect: Dialect, system_prompt_template: str | None
    ) -> None:
        self._tokenizer = tokenizer
        self._dialect = dialect
        self._controls = controls
        self.system = system_prompt_template

    def ids(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> list[int]:
        """Return the ids of the opening, generation prompt included."""
        if not messages:
            raise RenderError("an opening needs at least one message")
        outside = self._outside(messages, tools)
        guard = choose_guard(outside)
        placed = False

        def guarded(text: str) -> str:
            nonlocal placed
            changed = self._controls.guard(text, guard)
            placed = placed or changed != text
            return changed

        text = self.text(messages, tools, guarded)
        if placed:
            other = choose_guard([*outside, guard])
            again = self.text(messages, tools, lambda text: self._controls.guard(text, other))
            if unguarded(text, guard) != unguarded(again, other):
                raise RenderError(
                    "law L4: the chat template changes the guard characters in a text that holds a control string, so "
                    "that the string cannot be told from the template's own"
                )
            blank = self.text(messages, tools, lambda text: self._controls.blank(text, guard))
            ours, theirs = self._controls.sequence(text), self._controls.sequence(blank)
            if ours != theirs:
                raise RenderError(f"law L4: a text from outside changed the control tokens from {theirs} to {ours}")
        return self._controls.encode(text, guard)

    def length(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> int:
        """Return the number of characters from outside and from settings."""
        return sum(map(len, self._outside(messages, tools)))

    def text(self, messages: Sequence[Message], tools: Sequence[ToolSpec], change: Callable[[str], str]) -> str:
        """Return the opening as text, `change` applied to every string from outside."""
        dicts = for_template(messages, change, self._dialect)
        specs: list[dict[str, Any]] | None = None
        if self.system is not None:
            with boundary(RenderError, "filling in `system_prompt_template`"):
                system = self.system.format(tools=change(clean(for_system_prompt(tools))))
            if dicts[0]["role"] == "system":
                system = f"{system}\n\n{dicts.pop(0)['content']}"
            dicts.insert(0, {"role": "system", "content": system})
        elif tools:
            specs = map_strings(for_chat_template(tools), lambda text: change(clean(text)))
        with boundary(RenderError, "applying the chat template"):
            return self._tokenizer.apply_chat_template(dicts, tools=specs, add_generation_prompt=True)

    def _outside(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> list[str]:
        """Return every string that reaches the template, for the choice of a guard that none of them holds."""
        outside = [for_template(messages, str), for_chat_template(tools), self.system or ""]
        return [text for _, text in leaves_in(outside)]
