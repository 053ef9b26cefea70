"""Work that a server causes does not hold up the event loop, which all rollouts of a process share."""

from __future__ import annotations

from collections.abc import Generator

import pytest
from orl_core.errors import SessionError
from orl_rollout.openreward.sdk import prepare_sdk

from tests.kit.growth import session
from tests.kit.heartbeat import MAX_STOP, heartbeat
from tests.rollout.http.hostile import hostile


@pytest.fixture(scope="module")
def server() -> Generator[str]:
    prepare_sdk()
    with hostile() as url:
        yield url


@pytest.mark.parametrize("kind", ["comments", "tiny", "lines", "values", "wide", "quotes", "numbers"])
async def test_event_loop_runs_on_while_a_hostile_answer_is_read(server: str, kind: str) -> None:
    async with heartbeat() as measured:
        with pytest.raises(SessionError):
            await session(f"{server}/{kind}")
    assert measured.longest < MAX_STOP
