"""Identity of conversations: which requests say the same, whatever their JSON looks like.

A conversation is a chain of hashes, a link for each message, so that a request is found without rendering it. Texts of
the assistant count without the white space around them, arguments as canonical JSON; reasoning and ids do not count:
clients drop or rewrite them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from itertools import accumulate, compress, starmap
from operator import is_not
from typing import Any

import msgspec
from orl_core.messages import Message, ToolSpec

from orl_gateway.dialects import ModelRequest

_STRING = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"')
_DIGIT = re.compile("[0-9]")


def keys_of(
    request: ModelRequest, known: Sequence[bytes], as_sent: Callable[[Message, tuple[str, ...]], Message]
) -> list[bytes]:
    """Return the key of the conversation up to each message of `request`. `known` are the first of them.

    `as_sent` returns a message, given the ids of its calls, as the gateway sent it.
    """
    before = known[-1] if known else root_key(request.tools)
    new = map(as_sent, request.messages[len(known) :], request.call_ids[len(known) :])
    return [*known, *[*accumulate(new, next_key, initial=before)][1:]]


def begins(messages: Sequence[Message], request: ModelRequest) -> bool:
    """Return whether the request begins with `messages`. Most are the same objects, which `History` has read once."""
    if len(messages) > len(request.messages):
        return False
    others = compress(zip(messages, request.messages, strict=False), map(is_not, messages, request.messages))
    return all(starmap(_alike, others))


def _alike(one: Message, other: Message) -> bool:
    """Return whether two messages are equal as JSON. Python takes 1 and True for equal: JSON does not."""
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
