"""Failures of an environment or its connection, as SessionErrors.

An environment's message may echo a secret. It is scrubbed where an outcome is made and where a text is shown. The
module knows the exceptions of our transport, and nothing of sessions.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

import aiohttp
import msgspec
from orl_core.errors import (
    SessionAnswerError,
    SessionError,
    SessionRefused,
    SessionTimeout,
    SessionUnavailable,
    boundary,
    cut,
)

from orl_rollout.edge.http import NotJson, UnsafeAnswer
from orl_rollout.loop.session import Overloaded, SessionLost
from orl_rollout.openreward.platform import REFUSALS
from orl_rollout.openreward.transport import Refusal, RemoteFailure, transient

AWAY = frozenset({502, 503, 504})  # statuses by which a proxy answers for a server that is away
FORGOTTEN = frozenset({404, 410})  # statuses of a session that the server does not know, as after a restart
LONGEST = 1 << 14  # characters of a fault


@contextmanager
def as_session_error(what: str, *, begun: bool = False) -> Generator[None]:
    """Convert exceptions of the block to a SessionError that begins with `what`.

    A busy server (429) raises `Overloaded`. A server that is away raises `SessionLost`, and so does one that has
    forgotten a session that was `begun`.
    """
    try:
        with boundary(SessionError, what):
            yield
    except SessionError as fault:
        words = _words(fault.__cause__)
        message = f"{what}: {cut(words, LONGEST)}" if words else str(fault)
        raise _named(fault, message, begun=begun) from fault.__cause__


def _named(fault: SessionError, message: str, *, begun: bool) -> SessionError:
    """Return the error of the class that names the cause of `fault`."""
    cause = fault.__cause__
    if isinstance(cause, Refusal | aiohttp.ClientResponseError):
        retry_after = cause.retry_after if isinstance(cause, Refusal) else None
        if cause.status == 429:
            return Overloaded(message, retry_after=retry_after)
        if cause.status in AWAY or (begun and cause.status in FORGOTTEN):
            return SessionLost(message, retry_after=retry_after)
        refused = isinstance(cause, Refusal) and not transient(cause)
        return SessionRefused(message) if refused else SessionUnavailable(message)
    if isinstance(cause, aiohttp.ClientError | OSError):
        is_ours = isinstance(cause, TimeoutError) and not isinstance(cause, aiohttp.ClientError)  # a deadline
        return SessionTimeout(message) if is_ours else SessionLost(message)
    unusable = fault if isinstance(fault, SessionAnswerError) else cause
    if isinstance(unusable, SessionAnswerError | UnsafeAnswer | NotJson):
        return SessionAnswerError(message, answer=unusable.answer)
    return SessionAnswerError(message) if isinstance(cause, msgspec.ValidationError) else type(fault)(message)


def _words(cause: BaseException | None) -> str:
    """Return a plain message for exceptions of our transport; empty for all others."""
    if isinstance(cause, Refusal) and cause.status in REFUSALS:
        own = f". It says: {cause.message}" if cause.status == 402 and cause.message else ""
        return f"the server {REFUSALS[cause.status]}{own}"
    if isinstance(cause, Refusal | aiohttp.ClientResponseError):
        return f"HTTP {cause.status}: {cause.message}"
    if isinstance(cause, UnsafeAnswer | NotJson):
        return f"its answer is refused: {cause}"
    if isinstance(cause, RemoteFailure):
        return f"the environment failed (its server's log has the traceback): {cause}"
    if isinstance(cause, aiohttp.ClientError | OSError):
        return f"no answer{f': {cause}' if str(cause) else ' in time'}"
    return ""
