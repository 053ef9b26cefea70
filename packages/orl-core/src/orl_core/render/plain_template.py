"""Chat templates of models that were trained without tools: they have no role for results.

If the calls of such a model are prompted, its results are user messages, as in the OpenReward cookbook. The tokenizer
is wrapped, so that plans and certificate see one template that can print results, and need not know how.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import product
from typing import Any

from orl_core.errors import RenderError, boundary
from orl_core.render.dummy import DUMMY_TOOL, HELLO, Form, dummy, sentinel
from orl_core.render.tokenizer import Tokenizer
from orl_core.tools.format import for_chat_template

RESPONSE = ("<tool_response>\n", "\n</tool_response>")  # around a result: the cookbook's, Hermes' and Qwen's
AS_USER = "the chat template has no role for results: they are user messages, each in `<tool_response>`"
_UNKNOWN = "zqrole"  # a role that no template knows


def knows_results(tokenizer: Tokenizer) -> bool:
    """Return whether the chat template has its own way to print results.

    It has none if it refuses or drops a result. It has none either if it prints a result like a message of an unknown
    role, unless it also prints calls or tools: a template for tools may print all roles alike.
    """
    for calls, as_text, empty in product((True, False), (False, True), ("", None)):
        form = Form(calls=calls, as_text=as_text, empty=empty)
        plain, listed = (_printed(tokenizer, "tool", form, tools=tools) for tools in (False, True))
        unknown = _printed(tokenizer, _UNKNOWN, form, tools=False).lower().replace(_UNKNOWN, "tool")
        if plain.lower() != unknown or listed != plain or (calls and sentinel("a", 0) in plain):
            return True
    return False


def _printed(tokenizer: Tokenizer, role: str, form: Form, *, tools: bool) -> str:
    """Return a conversation that ends in a result of this role; empty if the template refuses or drops the result."""
    *before, result = [*HELLO, *dummy(("tool",), form)]
    text = ""
    with suppress(RenderError), boundary(RenderError, "applying the chat template to a result"):
        text = tokenizer.apply_chat_template(
            [*before, {**result, "role": role}],
            tools=for_chat_template([DUMMY_TOOL]) if tools else None,
            add_generation_prompt=True,
        )
    return text if sentinel("c", 0) in text else ""


class ResultsAsUser:
    """Wrap a tokenizer: its chat template prints results as user messages.

    The results of an action are one message, and a user message after them is the end of it: many templates demand that
    roles alternate.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.added_tokens = tokenizer.added_tokens
        self.vocabulary_size = tokenizer.vocabulary_size
        self.stop_ids = tokenizer.stop_ids
        self.encode = tokenizer.encode
        self.encode_joint = tokenizer.encode_joint
        self.decode = tokenizer.decode

    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None,
        add_generation_prompt: bool,
    ) -> str:
        """Return the text of a conversation; see `Tokenizer`."""
        shown: list[Mapping[str, Any]] = []
        last = ""
        for message in messages:
            role, content = message["role"], message["content"]
            if role == "tool":
                content = f"{RESPONSE[0]}{content}{RESPONSE[1]}"
            if last == "tool" and role in ("tool", "user"):
                shown[-1] = {"role": "user", "content": f"{shown[-1]['content']}\n{content}"}
            else:
                shown.append({"role": "user", "content": content} if role == "tool" else message)
            last = role
        return self._tokenizer.apply_chat_template(shown, tools=tools, add_generation_prompt=add_generation_prompt)
