# pyright: reportMissingTypeStubs=false, reportPrivateUsage=false
"""What goes wrong on the way to an environment, in one line that holds no secret; and what is worth another try.

The SDK's exceptions run over many lines (some in colour), and an environment's own words may echo a secret. The module
knows the SDK's exceptions and nothing of its sessions.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

import aiohttp
from orl_core.errors import SessionError, boundary

from orl_rollout.secrets import Scrubber

LONGEST = 1_000  # characters of a fault's line


@contextmanager
def speaking(what: str, scrubber: Scrubber) -> Generator[None]:
    """Convert what the block raises to a SessionError of one line that opens with `what`, secrets scrubbed.

    The cause is kept, for `transient`, unless it holds a secret.
    """
    try:
        with boundary(SessionError, what):
            yield
    except SessionError as fault:
        words = _words(fault.__cause__)
        text = " ".join((f"{what}: {words}" if words else str(fault)).split())[:LONGEST]
        safe = scrubber.scrub(text)
        if safe == str(fault):
            raise
        raise SessionError(safe) from (fault.__cause__ if safe == text else None)


def _words(cause: BaseException | None) -> str:
    """Plain words for the exceptions whose own text is not; empty for all others."""
    from openreward.api._session.http import (
        AuthenticationError,
        MaxRetriesError,
        _RemoteSSEError,
    )

    if isinstance(cause, AuthenticationError):
        return "the server refuses the API key (HTTP 401): set OPENREWARD_API_KEY"
    if isinstance(cause, aiohttp.ClientResponseError):
        return f"HTTP {cause.status}: {cause.message}"
    if isinstance(cause, MaxRetriesError):
        return f"no answer: {cause.errors[-1]}" if cause.errors else "no answer"
    if isinstance(cause, _RemoteSSEError):
        return f"the environment failed: {cause}"
    return ""


def transient(cause: BaseException | None) -> bool:
    """Whether a fresh session may succeed where this one failed. The SDK's own exhausted retries say that it may not.

    A session that `already exists` is one whose creation was answered into a broken connection and asked for again.
    """
    if isinstance(cause, aiohttp.ClientResponseError):
        return cause.status >= 500 or cause.status in {408, 425, 429} or "already exists" in cause.message
    return isinstance(cause, aiohttp.ClientError | OSError)
