"""An environment's words for its failure: searched as far as it is shown, with no part of a secret left in it."""

from __future__ import annotations

from base64 import b64encode

import aiohttp
import pytest
from orl_core.errors import (
    SessionAnswerError,
    SessionError,
    SessionRefused,
    SessionTimeout,
    SessionUnavailable,
)
from orl_rollout.http.client import UnsafeAnswer
from orl_rollout.loop.session import Overloaded, SessionLost
from orl_rollout.openreward.faults import SEARCHED, as_session_error
from orl_rollout.openreward.transport import Refusal, RemoteFailure
from orl_rollout.secrets.secrets import Scrubber

VALUE = "or_0123456789abcdef0123"
ENCODED = b64encode(VALUE.encode()).decode()


class Watched(Scrubber):
    """A scrubber that notes the longest text that it searches."""

    longest = 0

    def find(self, text: str) -> bool:
        self.longest = max(self.longest, len(text))
        return super().find(text)

    def scrub(self, text: str) -> str:
        self.longest = max(self.longest, len(text))
        return super().scrub(text)

    def settled(self, text: str) -> int:
        self.longest = max(self.longest, len(text))
        return super().settled(text)


def said(words: str) -> tuple[SessionError, int]:
    scrubber = Watched([VALUE])
    with pytest.raises(SessionError) as caught, as_session_error("calling tool `act`", scrubber):
        raise RemoteFailure(words)
    return caught.value, scrubber.longest


def test_long_failure_is_searched_as_far_as_it_is_shown() -> None:
    fault, longest = said("no room " * 1_000_000)
    assert longest <= SEARCHED
    assert str(fault).startswith("calling tool `act`: the environment failed: no room no room")
    assert fault.__cause__ is None


@pytest.mark.parametrize("place", range(0, 300, 7))
def test_secret_at_the_end_of_what_is_searched_is_not_shown(place: int) -> None:
    before = SEARCHED - 200 + place
    fault, _ = said(" " * before + VALUE + " " * SEARCHED)
    assert VALUE[:4] not in str(fault)
    fault, _ = said(" " * before + ENCODED + " " * SEARCHED)
    assert ENCODED[:8] not in str(fault)


@pytest.mark.parametrize(
    ("cause", "kind"),
    [
        (TimeoutError(), SessionTimeout),
        (aiohttp.ServerDisconnectedError(), SessionLost),
        (aiohttp.ConnectionTimeoutError(), SessionLost),
        (ConnectionResetError(), SessionLost),
        (Refusal(502, "bad gateway"), SessionLost),
        (Refusal(503, "busy"), SessionLost),
        (Refusal(500, "a bug"), SessionUnavailable),
        (Refusal(404, "no such session"), SessionRefused),
        (Refusal(429, "busy"), Overloaded),
        (Refusal(400, "no such task"), SessionRefused),
        (UnsafeAnswer("too large"), SessionAnswerError),
        (RemoteFailure("a bug"), SessionError),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else value.__name__,
)
def test_fault_has_the_class_of_its_cause(cause: Exception, kind: type[SessionError]) -> None:
    with pytest.raises(SessionError) as caught, as_session_error("opening a session", Scrubber([VALUE])):
        raise cause
    assert type(caught.value) is kind
    assert caught.value.__cause__ is cause


@pytest.mark.parametrize("status", [404, 410])
def test_a_session_that_the_server_forgot_is_lost(status: int) -> None:
    with pytest.raises(SessionLost), as_session_error("calling", Scrubber([VALUE]), begun=True):
        raise Refusal(status, "no such session")
