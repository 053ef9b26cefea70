"""Messages as chat templates read them: plain dicts, with every text from outside changed on the way (law L4).

It must not know templates or ids. Images are refused here: no later stage can tell which message they came from.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from msgspec import Struct

from orl_core.errors import RenderError
from orl_core.messages import ImageBlock, Message, text_of
from orl_core.text import clean, map_strings


def text_content(message: Message, place: int) -> str:
    """Return the text of a message, lone surrogates replaced. `place` is its index, for the error."""
    for number, block in enumerate(message.content):
        if isinstance(block, ImageBlock):
            speaker = f"{message.role} `{message.name}`" if message.name else message.role
            raise RenderError(
                f"block {number} of message {place} ({speaker}) is an image ({block.mime_type}): "
                "images are not supported, and dropping one would train on what the model never saw"
            )
    return clean(text_of(message.content))


class Dialect(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A template's demands on calls: arguments as JSON text or as an object, and ids with the call's name or not.

    `own_ids`: it prints ids of its own with calls, from 0 in each action, and with results those that it is given.
    """

    arguments_as_text: bool = False
    named_ids: bool = False
    own_ids: bool = False

    def call_id(self, number: int, name: str, sampled: str = "") -> str:
        """Return the id of call `number`: the one that the model sampled, if the template takes it."""
        if self.named_ids:
            return (not self.own_ids and sampled) or f"functions.{name}:{number}"
        return sampled if len(sampled) == 9 and sampled.isalnum() else call_id(number)


def for_template(
    messages: Sequence[Message], change: Callable[[str], str], dialect: Dialect | None = None
) -> list[dict[str, Any]]:
    """Return the messages as a template's `messages`, `change` applied to every string that comes from outside.

    Calls without an id get one by their number. Results are in the order of the calls before them, and take their ids.
    """
    dialect = dialect or Dialect()
    number = 0
    waiting: list[str] = []
    dicts: list[dict[str, Any]] = []
    for index, message in enumerate(messages):
        content = change(text_content(message, index))
        if message.role == "assistant":
            action = _assistant(message, content, 0 if dialect.own_ids else number, dialect, change)
            number += len(message.calls)
            waiting = [call["id"] for call in action.get("tool_calls", ())]
            dicts.append(action)
        elif message.role == "tool":
            name = change(clean(message.name))
            dicts.append(tool_dict(content, name=name, call=[*waiting, dialect.call_id(number, name)][0]))
            number += not waiting
            waiting = waiting[1:]
        else:
            dicts.append({"role": message.role, "content": content})
    return dicts


def _assistant(
    message: Message, content: str, calls_before: int, dialect: Dialect, change: Callable[[str], str]
) -> dict[str, Any]:
    action: dict[str, Any] = {"role": "assistant", "content": content}
    if message.reasoning:
        action["reasoning_content"] = change(clean(message.reasoning))
    calls: list[dict[str, Any]] = []
    for number, call in enumerate(message.calls, calls_before):
        name, arguments = change(clean(call.name)), map_strings(call.arguments, lambda text: change(clean(text)))
        id_ = dialect.call_id(number, name, change(clean(call.id)))
        calls.append(call_dict(name, arguments, call=id_, as_text=dialect.arguments_as_text))
    return action | ({"tool_calls": calls} if calls else {})


def call_dict(name: str, arguments: dict[str, Any], *, call: str, as_text: bool = False) -> dict[str, Any]:
    """Return a call in an assistant's message; `call` is its id, `as_text` writes the arguments as JSON text."""
    written = json.dumps(arguments, ensure_ascii=False) if as_text else arguments
    return {"id": call, "type": "function", "function": {"name": name, "arguments": written}}


def tool_dict(content: str, *, name: str, call: str) -> dict[str, Any]:
    """Return a tool's result; `call` is the id of the call that it answers."""
    return {"role": "tool", "content": content, "name": name, "tool_call_id": call}


def call_id(number: int) -> str:
    """Return the plain id of call `number`: nine letters and digits. Every template accepts it."""
    return f"c{number:08d}"
