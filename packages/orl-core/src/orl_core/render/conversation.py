"""Messages as chat templates read them: plain dicts, every text from outside changed on the way (law L4).

It must not know templates or ids. An image is refused here, at the first block that holds one, because no later place
can tell which message it came from.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from orl_core.errors import RenderError
from orl_core.messages import ImageBlock, Message, text_of
from orl_core.render.controls import map_strings
from orl_core.tools.strict_json import without_surrogates

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


def text_content(message: Message, place: int) -> str:
    """The text of a message, lone surrogates replaced. `place` is its index, for the error.

    Raises:
        RenderError: a block is an image.
    """
    for number, block in enumerate(message.content):
        if isinstance(block, ImageBlock):
            speaker = f"{message.role} `{message.name}`" if message.name else message.role
            raise RenderError(
                f"block {number} of message {place} ({speaker}) is an image ({block.mime_type}): "
                "images are not supported, and dropping one would train on what the model never saw"
            )
    return without_surrogates(text_of(message.content))


def for_template(messages: Sequence[Message], change: Callable[[str], str]) -> list[dict[str, Any]]:
    """The messages as a template's `messages`, `change` applied to every string that comes from outside.

    Calls get ids in the order of the conversation, and results take them in the same order.

    Raises:
        RenderError: a block is an image.
    """
    made = answered = 0
    dicts: list[dict[str, Any]] = []
    for place, message in enumerate(messages):
        content = change(text_content(message, place))
        if message.role == "assistant":
            ids = [call_id(made + number) for number in range(len(message.calls))]
            made += len(ids)
            dicts.append(_assistant(message, content, ids, change))
        elif message.role == "tool":
            dicts.append(tool_dict(content, name=map_strings(change, message.name), call=call_id(answered)))
            answered += 1
        else:
            dicts.append({"role": message.role, "content": content})
    return dicts


def _assistant(message: Message, content: str, ids: Sequence[str], change: Callable[[str], str]) -> dict[str, Any]:
    made: dict[str, Any] = {"role": "assistant", "content": content}
    if message.reasoning:
        made["reasoning_content"] = map_strings(change, message.reasoning)
    if message.calls:
        made["tool_calls"] = [
            call_dict(map_strings(change, call.name), map_strings(change, call.arguments), call=name)
            for call, name in zip(message.calls, ids, strict=True)
        ]
    return made


def call_dict(name: str, arguments: dict[str, Any], *, call: str) -> dict[str, Any]:
    """A call in an assistant's message; `call` is its id."""
    return {"id": call, "type": "function", "function": {"name": name, "arguments": arguments}}


def tool_dict(content: str, *, name: str, call: str) -> dict[str, Any]:
    """A tool's result; `call` is the id of the call that it answers."""
    return {"role": "tool", "content": content, "name": name, "tool_call_id": call}


def call_id(number: int) -> str:
    """The id of the conversation's call `number`: nine letters and digits, which every template accepts."""
    return f"c{number:08d}"
