"""Server-sent events from bytes, cut anywhere. Pure: no transport.

A result travels as JSON cut every 4,096 characters, so that a cut may fall into an indentation: of the whitespace after
a field's colon one space is removed and no more, as the standard has it.
"""

from __future__ import annotations


class EventReader:
    """Takes bytes, gives events. Bytes that are not UTF-8 become U+FFFD.

    Events without a name, comments and unknown fields are skipped.
    """

    def __init__(self) -> None:
        self._line: list[bytes] = []
        self._event = ""
        self._data: list[str] = []

    def feed(self, chunk: bytes) -> list[tuple[str, str]]:
        """The events (name, data) that `chunk` completes."""
        events: list[tuple[str, str]] = []
        first, *rest = chunk.split(b"\n")
        self._line.append(first)
        for piece in rest:
            line = b"".join(self._line).removesuffix(b"\r").decode("utf-8", "replace")
            self._line = [piece]
            if line:
                self._take(line)
                continue
            if self._event:
                events.append((self._event, "\n".join(self._data)))
            self._event, self._data = "", []
        return events

    def _take(self, line: str) -> None:
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "event":
            self._event = value
        elif name == "data":
            self._data.append(value)
