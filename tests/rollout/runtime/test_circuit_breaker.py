"""Promise 13: the breaker ends a run whose rollouts mostly end in ERROR, or that keeps meeting bugs of ours."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from orl_core.errors import RunAborted
from orl_rollout import logs
from orl_rollout.runtime.circuit_breaker import BUGS, WINDOW, CircuitBreaker


def fed(breaker: CircuitBreaker, errors: list[bool]) -> tuple[int, str] | None:
    """Return how many rollouts were counted when the breaker ended the run, if it did, and what it said."""
    for number, error in enumerate(errors, 1):
        try:
            breaker.saw(f"fault {number}" if error else "")
        except RunAborted as end:
            return number, str(end)
    return None


@given(
    errors=st.lists(st.booleans(), max_size=3 * WINDOW),
    rate=st.sampled_from([0.0, 0.25, 0.5, 0.9, 1.0]),
    group_size=st.sampled_from([1, 8, WINDOW]),
)
def test_promise_13_too_many_errors_end_the_run(errors: list[bool], rate: float, group_size: int):
    window = max(WINDOW, 2 * group_size)
    too_many = [
        number for number in range(window, len(errors) + 1) if sum(errors[number - window : number]) > rate * window
    ]
    breaker = CircuitBreaker(max_error_rate=rate, group_size=group_size)
    ended = fed(breaker, errors)
    assert (ended and ended[0]) == (too_many[0] if too_many else None)
    if ended:
        latest = max(index for index, failed in enumerate(errors[: ended[0]], 1) if failed)
        assert ended[1].endswith(f"the latest: fault {latest}")


def test_promise_13_third_bug_of_ours_ends_the_run():
    breaker = CircuitBreaker(max_error_rate=1.0, group_size=1)
    for number in range(1, BUGS):
        breaker.saw_bug(f"bug {number}")
        breaker.saw("")
    with pytest.raises(RunAborted, match=f"{BUGS} rollouts failed for a bug in orl, the latest: the last"):
        breaker.saw_bug("the last")


def test_promise_13_a_rollout_that_fails_late_counts_once():
    breaker = CircuitBreaker(max_error_rate=0.99, group_size=1)
    for number in range(1, WINDOW):
        breaker.saw("")
        breaker.saw_late(f"fault {number}")
    breaker.saw("")
    with pytest.raises(RunAborted, match=f"{WINDOW} of the last {WINDOW} rollouts"):
        breaker.saw_late("the last")


def lost(breaker: CircuitBreaker, rollouts: int, since: float) -> None:
    for number in range(rollouts):
        breaker.saw(f"lost {number}", lost_since=since)


def test_promise_13_batch_lost_to_a_restart_ends_nothing():
    breaker = CircuitBreaker(max_error_rate=0.5, group_size=1, patience=600.0)
    lost(breaker, 4 * WINDOW, time.monotonic())
    breaker.saw("one answer")


def test_promise_13_server_away_for_the_patience_ends_the_run():
    breaker = CircuitBreaker(max_error_rate=0.5, group_size=1, patience=600.0)
    lost(breaker, WINDOW - 1, time.monotonic() - 599.0)
    breaker.saw("", lost_since=None)
    lost(breaker, WINDOW, time.monotonic() - 601.0)  # one succeeded since
    breaker = CircuitBreaker(max_error_rate=0.5, group_size=1, patience=600.0)
    with pytest.raises(RunAborted, match=f"{WINDOW} of the last {WINDOW} rollouts"):
        lost(breaker, WINDOW, time.monotonic() - 601.0)


def test_promise_13_answers_among_lost_rollouts_end_the_run():
    breaker = CircuitBreaker(max_error_rate=0.25, group_size=1, patience=600.0)
    lost(breaker, WINDOW // 2, time.monotonic())
    assert fed(breaker, [True] * WINDOW) == (
        WINDOW // 2,
        f"{WINDOW} of the last {WINDOW} rollouts ended in ERROR; the latest: fault {WINDOW // 2}",
    )


def test_lost_rollouts_above_one_half_are_said_once_a_minute(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    now = [0.0]
    monkeypatch.setattr(logs, "time", SimpleNamespace(monotonic=lambda: now[0]))
    breaker = CircuitBreaker(max_error_rate=0.5, group_size=1, patience=600.0)
    lost(breaker, 8, time.monotonic())  # while none succeeds, the wait for the server is said
    for now[0] in (0.0, 59.0, 60.0):
        lost(breaker, 1, time.monotonic())
        breaker.saw("")
    said = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert [line.partition(" rollouts")[0] for line in said] == ["9 of the last 10", "11 of the last 13"]
