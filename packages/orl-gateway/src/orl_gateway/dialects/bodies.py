"""The bodies of one episode's requests: a beginning that stood in an earlier one is not scanned again (law L5).

A client sends its whole history with each request. Where a body begins with the bytes of an earlier one up to the last
message of that, those messages are known: one string stands in for them while the rest is read. This is exact. The
string is random, so where the reader finds it as the first message, it has read this place as one: there it would have
read the known messages too, and what follows them alike. In every other case the whole body is read.
"""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from hashlib import sha256
from typing import Any, TypeVar

from msgspec import Struct

from orl_gateway.dialects.exchange import RequestRefused
from orl_gateway.dialects.reading import parts_of

F = TypeVar("F", bound=Struct)

LINES = 16  # bodies that are remembered: sub-agents speak side by side
_KNOWN = b'"%s"' % secrets.token_hex(16).encode()  # stands for the messages that are known


class _Beginning(Struct, frozen=True):
    """A body up to its last message: its text in `pieces`, the first of them up to the list, and its messages.

    Bodies share pieces. `hashed` is the SHA-256 of the text, which can go on.
    """

    pieces: tuple[bytes, ...]
    parts: list[bytes]
    hashed: Any

    def end_in(self, body: bytes) -> int:
        """Return where this text ends in a body that begins with it; 0 where it does not."""
        end = 0
        for piece in self.pieces:
            if not body.startswith(piece, end):
                return 0
            end += len(piece)
        return end

    def longer(self, piece: bytes, parts: list[bytes]) -> _Beginning:
        """Return the beginning that goes on with `piece`, which holds `parts`."""
        hashed = self.hashed.copy()
        hashed.update(piece)
        return _Beginning((*self.pieces, piece), [*self.parts, *parts], hashed)


class Bodies:
    """Bodies that were read before, the last one first."""

    def __init__(self) -> None:
        self._known: deque[_Beginning] = deque(maxlen=LINES)

    def read(self, body: bytes, name: str, read: Callable[[bytes], F]) -> tuple[F, list[bytes]]:
        """Return what `read` reads of `body`, and the members of its list `name`, as the client wrote them.

        Raises:
            RequestRefused: as `read` does, or `name` is no list.
        """
        known, end = self._find(body)
        if known is not None:
            with suppress(RequestRefused):  # the same is found in the whole body
                asked = read(b"".join((known.pieces[0], _KNOWN, body[end:])))
                text = bytes(getattr(asked, name))
                first, *new = parts_of(name, text) or (b"",)
                if first == _KNOWN:
                    return asked, self._keep(known.longer(text[1 + len(_KNOWN) : -1], new))
        asked = read(body)
        text = bytes(getattr(asked, name))
        parts, start = parts_of(name, text), body.find(text) + 1
        if not parts or not start:
            return asked, parts
        head = body[:start]
        return asked, self._keep(_Beginning((head,), [], sha256(head)).longer(text[1:-1], parts))

    def digest(self, body: bytes) -> bytes:
        """Return the SHA-256 of `body`."""
        known, end = self._find(body)
        hashed = known.hashed.copy() if known else sha256()
        hashed.update(body[end:])
        return hashed.digest()

    def _find(self, body: bytes) -> tuple[_Beginning | None, int]:
        """Return what is known of the beginning of `body`, and where it ends."""
        return next(((known, end) for known in self._known if (end := known.end_in(body))), (None, 0))

    def _keep(self, beginning: _Beginning) -> list[bytes]:
        self._known.appendleft(beginning)
        return beginning.parts
