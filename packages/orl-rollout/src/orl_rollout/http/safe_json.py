"""JSON from a server. Its size is limited where it is read."""

from __future__ import annotations

import json
from typing import Any

from orl_core.errors import cut

from orl_rollout.http.client import KEPT_BYTES


class NotJson(ValueError):
    """The answer is not JSON. `answer` is the first part of its text."""

    def __init__(self, message: str, answer: str) -> None:
        super().__init__(message)
        self.answer = answer


def decode(body: bytes | bytearray) -> Any:
    """Return the JSON in `body`, None if it is empty. Bytes that are not UTF-8 become U+FFFD.

    Raises:
        NotJson: it is not JSON, or nested deeper than Python can read.
    """
    if not body:
        return None
    text = body.decode("utf-8", "replace")
    del body  # it is half of the memory, unless the caller still holds it
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as exc:
        raise NotJson(f"the answer is not JSON: {exc}", cut(text, KEPT_BYTES)) from exc
