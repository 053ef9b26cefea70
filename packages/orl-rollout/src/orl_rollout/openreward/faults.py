"""Failures on the way to an environment, in one line that holds no secret.

An exception's text may run over many lines, and an environment's own words may echo a secret. The module knows the
exceptions of our transport, and nothing of sessions.
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
)

from orl_rollout.http.client import UnsafeAnswer
from orl_rollout.loop.session import Overloaded
from orl_rollout.openreward.transport import Refusal, RemoteFailure, transient
from orl_rollout.secrets.secrets import Scrubber

LONGEST = 1_000  # characters of a fault's line
SEARCHED = 1 << 16  # characters of a fault that are searched for secrets, which happens on the event loop


@contextmanager
def as_session_error(what: str, scrubber: Scrubber) -> Generator[None]:
    """Convert exceptions of the block to a SessionError of one line that opens with `what`, secrets scrubbed.

    `Overloaded` where the server refuses for being busy. The cause is kept unless its chain holds a secret.
    """
    try:
        with boundary(SessionError, what):
            yield
    except SessionError as fault:
        cause = fault.__cause__
        words = _words(cause)
        said = f"{what}: {words}" if words else str(fault)
        scrubbed = scrubber.scrub(_head(said, scrubber))  # before it is folded, which would hide a part of a value
        safe = " ".join(scrubbed.split())[:LONGEST] or what
        kept = cause if scrubbed == said and _is_clean(_chain(cause), scrubber) else None
        if isinstance(cause, Refusal) and cause.status == 429:
            raise Overloaded(safe, retry_after=cause.retry_after) from kept
        leaf = _leaf(fault)
        if safe == str(fault) and kept is cause and leaf is type(fault):
            raise
        raise leaf(safe) from kept


def _leaf(fault: SessionError) -> type[SessionError]:
    """Return the class that names the cause of `fault`."""
    cause = fault.__cause__
    if isinstance(cause, TimeoutError):
        return SessionTimeout
    if isinstance(cause, UnsafeAnswer | msgspec.ValidationError):
        return SessionAnswerError
    if isinstance(cause, aiohttp.ClientError | OSError) or transient(cause):
        return SessionUnavailable
    return SessionRefused if isinstance(cause, Refusal) else type(fault)


def _head(said: str, scrubber: Scrubber) -> str:
    """Return `said`, a long one cut where no secret is split."""
    if len(said) <= SEARCHED:
        return said
    head = said[:SEARCHED]
    return head[: scrubber.settled(head)]


def _is_clean(chain: str, scrubber: Scrubber) -> bool:
    """Return whether `chain` holds no secret; a long one is not searched, and may hold one."""
    return len(chain) <= SEARCHED and not scrubber.find(chain)


def _chain(cause: BaseException | None) -> str:
    """Return all that the exceptions of a chain say, which a traceback would print."""
    said: list[str] = []
    seen: set[int] = set()
    waiting = [cause]
    while waiting:
        one = waiting.pop()
        if one is not None and id(one) not in seen:
            seen.add(id(one))
            said += [str(one), repr(one)]
            waiting += [one.__cause__, one.__context__]
    return "\n".join(said)


def _words(cause: BaseException | None) -> str:
    """Return plain words for the exceptions whose own text is not; empty for all others."""
    if isinstance(cause, Refusal) and cause.status == 401:
        return "the server refuses the API key (HTTP 401): set OPENREWARD_API_KEY"
    if isinstance(cause, Refusal | aiohttp.ClientResponseError):
        return f"HTTP {cause.status}: {cause.message}"
    if isinstance(cause, UnsafeAnswer):
        return f"its answer is refused: {cause}"
    if isinstance(cause, RemoteFailure):
        return f"the environment failed: {cause}"
    if isinstance(cause, aiohttp.ClientError | OSError):
        return f"no answer: {str(cause) or 'in time'}"
    return ""
