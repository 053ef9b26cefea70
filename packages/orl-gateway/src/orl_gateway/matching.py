"""Identity of conversations: which requests say the same, whatever their JSON looks like.

A conversation is a chain of hashes, a link for each message, so that a request is found without rendering it. Texts of
the assistant count without the white space around them, arguments as canonical JSON; reasoning and ids do not count:
clients drop or rewrite them.
"""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from itertools import accumulate
from operator import is_
from typing import Any

import msgspec
from orl_core.messages import Message, ToolSpec

from orl_gateway.dialects import ModelRequest

LINES = 16  # conversations whose keys are remembered
_STRING = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"')
_DIGIT = re.compile("[0-9]")


class Keys:
    """Keys of the requests of one episode. The part of a request that stood in another one is not hashed again."""

    def __init__(self) -> None:
        self._lines: deque[tuple[tuple[ToolSpec, ...], tuple[Message, ...], list[bytes]]] = deque(maxlen=LINES)

    def of(self, request: ModelRequest, known: Sequence[bytes] = ()) -> list[bytes]:
        """Return the key of the conversation up to each message of `request`. `known` are the first of them."""
        keys = [*(known or next((line[2] for line in self._lines if _begins(request, *line[:2])), ()))]
        before, new = keys[-1] if keys else root_key(request.tools), request.messages[len(keys) :]
        keys += [*accumulate(new, next_key, initial=before)][1:]
        self._lines.appendleft((request.tools, request.messages, keys))
        return keys


def _begins(request: ModelRequest, tools: tuple[ToolSpec, ...], messages: tuple[Message, ...]) -> bool:
    """Return whether the request begins with `messages`, with these tools."""
    same_tools = tools is request.tools or (tools == request.tools and repr(tools) == repr(request.tools))
    if not same_tools or len(messages) > len(request.messages):
        return False
    return all(map(is_, messages, request.messages)) or all(map(_alike, messages, request.messages))


def _alike(one: Message, other: Message) -> bool:
    """Return whether two messages have one key for sure. Python takes 1 and True for equal: JSON does not."""
    return one == other and (not one.calls or repr(one.calls) == repr(other.calls))


def root_key(tools: Sequence[ToolSpec]) -> bytes:
    """Return the beginning of every conversation with these tools."""
    return _hash(b"", *(json.dumps(msgspec.to_builtins(tool), sort_keys=True) for tool in tools))


def next_key(key: bytes, message: Message) -> bytes:
    """Return the key of the conversation `key` with one more message."""
    if message.role == "assistant":
        calls = (part for call in message.calls for part in (call.name, canonical(call.arguments)))
        return _hash(key, "assistant", message.text.strip(), *calls)
    return _hash(key, message.role, message.name, message.text)


def canonical(arguments: Mapping[str, Any]) -> str:
    """Return arguments as JSON that is the same for all writers: keys in order, every number as a double.

    Some clients know no other numbers: a large integer comes back rounded.
    """
    try:
        text = msgspec.json.encode(arguments, order="sorted").decode()
    except (OverflowError, ValueError):  # an integer of more than 64 bits, or a lone surrogate
        text = json.dumps(arguments, sort_keys=True)
    if _DIGIT.search(_STRING.sub("", text)) is None:
        return text
    return json.dumps(json.loads(text, parse_int=_number, parse_float=_number))


def _number(text: str) -> float:
    return float(text) + 0.0  # -0.0 becomes 0.0


def _hash(before: bytes, *parts: str) -> bytes:
    """Hash `parts`, each with its length, so that no two lists of parts look alike."""
    made = blake2b(before, digest_size=16)
    for part in parts:
        data = part.encode("utf-8", "surrogatepass")
        made.update(b"%d:" % len(data))
        made.update(data)
    return made.digest()
