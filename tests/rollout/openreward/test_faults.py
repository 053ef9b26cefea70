"""The failure of an environment: its class says what to do, and its text is bounded."""

from __future__ import annotations

import aiohttp
import pytest
from orl_core.errors import (
    SessionAnswerError,
    SessionError,
    SessionRefused,
    SessionTimeout,
    SessionUnavailable,
)
from orl_rollout.edge.http import UnsafeAnswer
from orl_rollout.loop.session import Overloaded, SessionLost
from orl_rollout.openreward.faults import LONGEST, as_session_error
from orl_rollout.openreward.transport import Refusal, RemoteFailure


def test_long_failure_is_cut_between_words() -> None:
    with pytest.raises(SessionError) as caught, as_session_error("calling tool `act`"):
        raise RemoteFailure("no room " * 1_000_000)
    said = str(caught.value)
    assert said.startswith("calling tool `act`: the environment failed")
    assert "log" in said[:100], "the server sends the text alone; type and place of the exception stay there"
    assert "no room no room" in said
    assert len(str(caught.value)) < 2 * LONGEST


@pytest.mark.parametrize(
    ("cause", "kind"),
    [
        (TimeoutError(), SessionTimeout),
        (aiohttp.ServerDisconnectedError(), SessionLost),
        (aiohttp.ConnectionTimeoutError(), SessionLost),
        (ConnectionResetError(), SessionLost),
        (Refusal(502, "bad gateway"), SessionLost),
        (Refusal(503, "busy"), SessionLost),
        (Refusal(504, "too late"), SessionLost),
        (Refusal(500, "a bug"), SessionUnavailable),
        (Refusal(404, "no such session"), SessionRefused),
        (Refusal(429, "busy"), Overloaded),
        (Refusal(400, "no such task"), SessionRefused),
        (UnsafeAnswer(1, b"too large"), SessionAnswerError),
        (RemoteFailure("a bug"), SessionError),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else value.__name__,
)
def test_fault_has_the_class_of_its_cause(cause: Exception, kind: type[SessionError]) -> None:
    with pytest.raises(SessionError) as caught, as_session_error("opening a session"):
        raise cause
    assert type(caught.value) is kind
    assert caught.value.__cause__ is cause


@pytest.mark.parametrize("status", [404, 410])
def test_a_session_that_the_server_forgot_is_lost(status: int) -> None:
    with pytest.raises(SessionLost), as_session_error("calling", begun=True):
        raise Refusal(status, "no such session")
