"""Many agents at once, with the habits of agents in the world: each sampled id is in one row, or its episode failed."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest
from orl_core.datum import to_data
from orl_core.trajectory import StopReason
from orl_gateway.agent import agent_player

from tests.kit.crowd import HABITS, Played, play_crowd
from tests.laws.checks import check_shown, check_tree


def check_crowd(played: Sequence[Played]) -> None:
    """Check laws L1, L2 and L7 in each episode."""
    for one in played:
        assert (one.session.opened, one.session.closed) == (1, 1), one.habit
        if one.trajectory.stop_reason is not StopReason.ERROR:
            data = to_data(one.trajectory, reward=1.0)
            check_tree(one.trajectory, data)
            check_shown(one.returned, data)


def open_files() -> int:
    return len([*Path("/dev/fd").iterdir()])


@pytest.mark.parametrize("agents", [28, pytest.param(256, marks=pytest.mark.runs)])
def test_crowd_loses_no_sampled_id(agents: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_player, "GRACE_SECONDS", 0.1)

    async def main() -> list[Played]:
        before = open_files()
        played = await play_crowd(agents)
        for _ in range(10):  # connections close in the rounds of the loop that follow
            await asyncio.sleep(0)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        assert open_files() == before
        return played

    played = asyncio.run(main())
    check_crowd(played)
    assert {one.habit for one in played if one.returned and one.trajectory.turns} == {
        habit.__name__ for habit in HABITS
    }
