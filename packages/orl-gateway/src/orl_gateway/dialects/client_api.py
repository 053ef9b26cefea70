"""One API that clients speak, as the functions of its module, and how the events of a stream are written."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from msgspec import Struct

from orl_gateway.dialects.conversation import History
from orl_gateway.dialects.exchange import ModelRequest, Reply, RequestRefused
from orl_gateway.dialects.reading import Fields, read_body

Event = Mapping[str, Any]


class ClientApi(Struct, frozen=True, kw_only=True):
    """One API that clients speak: pure functions from its wire format and to it.

    `body` is the answer of one piece, `events` are those of a stream, in order; `encode` writes one of them, `end`
    follows the last one, and `keepalive` may be between any two. `request` reads one whose body has the form `form`.
    """

    name: str
    form: type[Fields]
    request: Callable[[Any, History], ModelRequest]
    body: Callable[[Reply, ModelRequest], dict[str, Any]]
    events: Callable[[Reply, ModelRequest], Iterable[Event]]
    error: Callable[[RequestRefused], dict[str, Any]]
    encode: Callable[[Event], bytes]
    error_event: Callable[[RequestRefused], Event]
    keepalive: bytes
    end: bytes = b""

    def read(self, body: bytes, history: History | None = None) -> ModelRequest:
        """Read a request. What `history` has read before is not read again."""
        history = history or History()
        return self.request(read_body(body, self.form, samples=history.samples_forced_calls), history)


def data_of(event: Event) -> bytes:
    """Write an event as a server-sent event without a name."""
    return b"data: " + json.dumps(event).encode() + b"\n\n"


def named(event: Event) -> bytes:
    """Write an event as a server-sent event that its type names."""
    return f"event: {event['type']}\n".encode() + data_of(event)
