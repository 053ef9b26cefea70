# pyright: reportMissingTypeStubs=false, reportPrivateUsage=false
"""What goes wrong on the way to an environment, in one line that holds no secret.

The SDK's exceptions run over many lines (some in colour), and an environment's own words may echo a secret. The module
knows the exceptions of the SDK and of our transport, and nothing of sessions.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

import aiohttp
from orl_core.errors import SessionError, boundary

from orl_rollout.openreward.transport import Refusal, RemoteFailure
from orl_rollout.secrets import Scrubber
from orl_rollout.session import Overloaded

LONGEST = 1_000  # characters of a fault's line


@contextmanager
def speaking(what: str, scrubber: Scrubber) -> Generator[None]:
    """Convert what the block raises to a SessionError of one line that opens with `what`, secrets scrubbed.

    `Overloaded` where the server refuses for being busy. The cause is kept unless it holds a secret.
    """
    try:
        with boundary(SessionError, what):
            yield
    except SessionError as fault:
        cause = fault.__cause__
        words = _words(cause)
        text = " ".join((f"{what}: {words}" if words else str(fault)).split())[:LONGEST]
        safe = scrubber.scrub(text)
        kept = cause if safe == text else None
        if isinstance(cause, Refusal) and cause.status == 429:
            raise Overloaded(safe, retry_after=cause.retry_after) from kept
        if safe == str(fault):
            raise
        raise SessionError(safe) from kept


def _words(cause: BaseException | None) -> str:
    """Plain words for the exceptions whose own text is not; empty for all others."""
    from openreward.api._session.http import AuthenticationError, MaxRetriesError

    if isinstance(cause, AuthenticationError) or (isinstance(cause, Refusal) and cause.status == 401):
        return "the server refuses the API key (HTTP 401): set OPENREWARD_API_KEY"
    if isinstance(cause, Refusal | aiohttp.ClientResponseError):
        return f"HTTP {cause.status}: {cause.message}"
    if isinstance(cause, MaxRetriesError):
        return f"no answer: {cause.errors[-1]}" if cause.errors else "no answer"
    if isinstance(cause, RemoteFailure):
        return f"the environment failed: {cause}"
    if isinstance(cause, aiohttp.ClientError | OSError):
        return f"no answer: {str(cause) or 'in time'}"
    return ""
