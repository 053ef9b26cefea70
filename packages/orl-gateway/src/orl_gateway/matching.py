"""Identity of conversations: which requests say the same, whatever their JSON looks like.

A conversation is a chain of hashes, a link for each message, so that a request is found without rendering it. Texts of
the assistant count without the white space around them, arguments as canonical JSON; reasoning and ids do not count:
clients drop or rewrite them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any

import msgspec
from orl_core.messages import Message, ToolSpec


def root_key(tools: Sequence[ToolSpec]) -> bytes:
    """Return the beginning of every conversation with these tools."""
    return _hash(b"", [msgspec.to_builtins(tool) for tool in tools])


def next_key(key: bytes, message: Message) -> bytes:
    """Return the key of the conversation `key` with one more message."""
    if message.role == "assistant":
        calls = [[call.name, canonical(call.arguments)] for call in message.calls]
        return _hash(key, ["assistant", message.text.strip(), calls])
    return _hash(key, [message.role, message.name, message.text])


def canonical(arguments: Mapping[str, Any]) -> str:
    """Return arguments as JSON that is the same for all writers: keys in order, every number as a double.

    Some clients know no other numbers: a large integer comes back rounded.
    """
    numbers = json.loads(json.dumps(arguments), parse_int=_number, parse_float=_number)
    return json.dumps(numbers, sort_keys=True)


def _number(text: str) -> float:
    return float(text) + 0.0  # -0.0 becomes 0.0


def _hash(before: bytes, tree: object) -> bytes:
    return blake2b(before + json.dumps(tree, sort_keys=True).encode(), digest_size=16).digest()
