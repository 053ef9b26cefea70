"""Server-sent events (SSE) from bytes, cut anywhere. Pure: no transport. The caller limits the bytes.

A result comes as JSON cut every 4,096 characters, maybe inside an indentation. So only one space after a field's colon
is removed, as the standard says.
"""

from __future__ import annotations


class EventReader:
    """Parses bytes into events. It keeps only the bytes of the current event.

    Events without a name, comments and unknown fields are skipped.
    """

    def __init__(self) -> None:
        self._line = bytearray()
        self._event = ""
        self._data = bytearray()

    def feed(self, chunk: bytes) -> list[tuple[str, bytearray]]:
        """Return the events (name, data) that `chunk` completes."""
        events: list[tuple[str, bytearray]] = []
        first, *rest = chunk.split(b"\n")
        self._line += first
        for piece in rest:
            line, self._line = self._line, bytearray(piece)
            if line.endswith(b"\r"):
                del line[-1]
            if line:
                self._take(line)
                continue
            if self._event:
                events.append((self._event, self._data[:-1]))
            self._event, self._data = "", bytearray()
        return events

    def _take(self, line: bytearray) -> None:
        colon = line.find(b":")
        name, start = (bytes(line[:colon]), colon + 1) if colon >= 0 else (bytes(line), len(line))
        start += line.startswith(b" ", start)
        if name == b"event":
            self._event = line[start:].decode("utf-8", "replace")
        elif name == b"data":
            self._data += memoryview(line)[start:]
            self._data += b"\n"
