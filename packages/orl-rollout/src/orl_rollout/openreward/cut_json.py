"""JSON of bounded size from parts: what is too long of its texts is left out, and the rest can be read.

The reward of a call follows its text, so an answer that is too long cannot be cut at its end. Only strings named
`text` are cut, which a model reads: half an image is of no use. Pure: no transport.
"""

from __future__ import annotations

import re

PART = 1 << 14  # bytes of a string that are taken or left at once
_WHOLE = re.compile(rb'(?:[^"\\]++|\\u.{4}|\\[^u])*+', re.DOTALL)  # of a string, without half an escape


class CutJson:
    """Collects JSON in `body`, in linear time. Its texts end with the PART that makes it longer than `most` bytes."""

    def __init__(self, most: int) -> None:
        self.body = bytearray()
        self.is_cut = False
        self._most = most
        self._rest = b""  # half an escape
        self._begins = 0  # where in `body` the open string begins; 0 outside of strings
        self._name = b""  # of the value that comes next

    def feed(self, part: bytes | bytearray) -> None:
        """Take the next part. It may begin and end anywhere."""
        data, at = self._rest + part, 0
        while at < len(data):
            if not self._begins:
                end = data.find(b'"', at) + 1 or len(data)
                between, at = data[at:end], end
                self.body += between
                if between.strip(b'": \t\r\n'):
                    self._name = b""
                self._begins = between.endswith(b'"') and len(self.body)
                continue
            end = next(_WHOLE.finditer(data, at, at + PART)).end()
            if self._name == b"text" and len(self.body) > self._most:
                self.is_cut |= end > at
            else:
                self.body += data[at:end]
            if data[end : end + 1] == b'"':
                self._name = bytes(self.body[self._begins : self._begins + 6])
                self._begins = 0
                self.body += b'"'
                end += 1
            elif end == at:
                break
            at = end
        self._rest = data[at:]
