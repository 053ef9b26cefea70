"""Identity of conversations: which requests say the same, whatever their JSON looks like.

A conversation is a chain of hashes, a link for each message, so that a request is found without rendering it. Texts of
the assistant count without the white space around them, arguments as canonical JSON; reasoning and ids do not count:
clients drop or rewrite them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any

import msgspec
from orl_core.messages import Message, ToolSpec

_STRING = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"')
_DIGIT = re.compile("[0-9]")


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
    chain = blake2b(before, digest_size=16)
    for part in parts:
        data = part.encode("utf-8", "surrogatepass")
        chain.update(b"%d:" % len(data))
        chain.update(data)
    return chain.digest()
