"""Words for a refused request: the server's own, or advice where the server does not know the request.

Pure. The routes of a session are the same in openreward from 0.1.60 on and in ors-sdk. A server without one of them is
older, or no environment server at all.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

import msgspec
from msgspec import Struct

ADVICE = (
    "The server needs openreward 0.1.60 or newer, or ors-sdk 0.1.0 or newer: upgrade it, or correct `base_url` if that "
    "is the address of another server"
)
UNKNOWN_REQUEST = frozenset({404, 405, 501})


class _Problem(Struct, frozen=True, kw_only=True):
    loc: tuple[Any, ...] = ()
    msg: str


class _Detail(Struct, frozen=True, kw_only=True):
    detail: str | list[_Problem]


def refusal_words(status: int, request: str, body: bytes) -> str:
    """Return what a server means that answered `request` ("POST /create") with `status` and `body`."""
    own = _own_words(body)
    if isinstance(own, str) and (status not in UNKNOWN_REQUEST or own != HTTPStatus(status).phrase) and status != 501:
        return own
    if isinstance(own, list):
        # The values that were rejected are left out: one of them may be a secret.
        problems = "; ".join(f"{'.'.join(map(str, problem.loc))}: {problem.msg}" for problem in own)
        toolset = " A toolset needs openreward 0.1.94 or newer." if "toolset_name" in problems else ""
        return f"{request} has another form on this server ({problems}).{toolset} {ADVICE}"
    if status in UNKNOWN_REQUEST:
        return f"{request} is unknown to this server{f' ({own})' if own else ''}. {ADVICE}"
    return body.decode("utf-8", "replace")


def _own_words(body: bytes) -> str | list[_Problem] | None:
    """Return the `detail` of a refusal in JSON; None if there is none."""
    try:
        return msgspec.json.decode(body, type=_Detail).detail
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
