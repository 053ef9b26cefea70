"""The bodies of one episode's requests: a beginning that stood in an earlier one is not scanned again (law L5).

A client sends its whole history with each request. Where a body begins with the bytes of an earlier one up to a message
of that, those messages are known: one string stands in for them while the rest is read. This is exact. The
string is random, so where the reader finds it as the first message, it has read this place as one: there it would have
read the known messages too, and what follows them alike. In every other case the whole body is read.
"""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from hashlib import sha256
from typing import Any, TypeVar

from msgspec import Struct

from orl_gateway.dialects.exchange import RequestRefused
from orl_gateway.dialects.reading import parts_of

F = TypeVar("F", bound=Struct)

LINES = 16  # conversations of an episode that are remembered: sub-agents speak side by side
_MARK = b'"cache_control"'  # clients move it to their last messages with each request
_KNOWN = b'"%s"' % secrets.token_hex(16).encode()  # stands for the messages that are known


def lasting(parts: Sequence[bytes]) -> int:
    """Return how many new messages the next request begins with: those before one with a mark of the prompt cache.

    The first message counts in any case: a mark that was known to be next and is still there does not move.
    """
    return next((index for index in range(1, len(parts)) if _MARK in parts[index]), len(parts))


class _Beginning(Struct):
    """A body up to one of its messages: the first `end` bytes of `text`, of which the messages begin at `start`.

    `hashed` is the SHA-256 of these bytes, which can go on. `text` is a later body where one begins with them.
    """

    text: bytes
    start: int
    end: int
    parts: list[bytes]
    hashed: Any

    def rest_of(self, body: bytes) -> bytes | None:
        """Return what follows these bytes in a body that begins with them, else None."""
        rest = body.removeprefix(memoryview(self.text)[: self.end])
        return rest if len(rest) < len(body) else None

    def longer(self, body: bytes, count: int, parts: list[bytes]) -> _Beginning:
        """Return the beginning of `body` with those of `parts` that last. All of them have `count` bytes."""
        end, kept = self.end + count, lasting(parts)
        if kept < len(parts):
            end, parts = self.end, parts[:kept]
            for part in parts:
                end = body.index(part, end) + len(part)
        hashed = self.hashed.copy()
        hashed.update(body[self.end : end])
        return _Beginning(body, self.start, end, [*self.parts, *parts], hashed)


class Bodies:
    """Bodies that were read before, the last one first."""

    def __init__(self) -> None:
        self._known: deque[_Beginning] = deque(maxlen=LINES)
        self._found: tuple[bytes, _Beginning | None, bytes] | None = None  # of the body that is at hand

    def read(self, body: bytes, name: str, read: Callable[[bytes], F]) -> tuple[F, list[bytes]]:
        """Return what `read` reads of `body`, and the members of its list `name`, as the client wrote them.

        Raises:
            RequestRefused: as `read` does, or `name` is no list.
        """
        _, known, rest = self._found = self._find(body)
        if known is not None:
            with suppress(RequestRefused):  # the same is found in the whole body
                asked = read(b"".join((body[: known.start], _KNOWN, rest)))
                text = bytes(getattr(asked, name))
                first, *new = parts_of(name, text) or (b"",)
                if first == _KNOWN:
                    return asked, self._go_on(known, body, len(text) - len(_KNOWN) - 2, new)
        asked = read(body)
        text = bytes(getattr(asked, name))
        parts, start = parts_of(name, text), body.find(text) + 1
        if parts and start:
            head = _Beginning(body, start, start, [], sha256(body[:start]))
            self._known.appendleft(head.longer(body, len(text) - 2, parts))
        return asked, parts

    def digest(self, body: bytes) -> bytes:
        """Return the SHA-256 of `body`."""
        at_hand, self._found = self._found, None
        _, known, rest = at_hand if at_hand and at_hand[0] is body else self._find(body)
        hashed = known.hashed.copy() if known else sha256()
        hashed.update(rest)
        return hashed.digest()

    def _find(self, body: bytes) -> tuple[bytes, _Beginning | None, bytes]:
        """Return `body`, what is known of its beginning, and the rest of it."""
        for known in self._known:
            if (rest := known.rest_of(body)) is not None:
                return body, known, rest
        return body, None, body

    def _go_on(self, known: _Beginning, body: bytes, count: int, parts: list[bytes]) -> list[bytes]:
        """Keep `body`, which goes on after `known`, and no second copy of what it begins with. Return its messages."""
        earlier = known.text
        for one in self._known:
            if one.text is earlier and one.end <= known.end:
                one.text = body
        self._known.appendleft(known.longer(body, count, parts))
        return [*known.parts, *parts]
