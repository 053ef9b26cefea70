"""The gallery as others use it: the same seed gives the same episodes, in this process and in one of its own."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest
from orl_core.config import RunConfig, decode_config
from orl_core.messages import ToolCall, text_of
from orl_core.task import Task
from orl_rollout.openreward import OpenRewardClient
from orl_rollout.openreward.environment import list_tasks, open_listing
from orl_testing import environments as envs

from tests.kit.episodes import Playing


def config_of(url: str) -> RunConfig:
    return decode_config({"environments": {"gallery/Drawers": {"base_url": url}}}, "test")


async def transcript(url: str) -> list[Any]:
    """All tasks of both splits, and everything that the first three episodes say and pay."""
    async with OpenRewardClient(config_of(url)) as client:
        told: list[Any] = []
        tasks: list[Task] = []
        for split in ("train", "test"):
            listing = await open_listing(client, "gallery/Drawers", split)
            tasks += [task async for task in list_tasks(listing)]
        told += [task.task_spec for task in tasks]
        for task in tasks[:3]:
            session = client.session(task)
            opening = await session.open(task)
            told += [text_of(message.content) for message in opening.messages]
            for name, drawer in (("look", 0), ("look", 1), ("look", 99), ("take", 1)):
                result = await session.call(ToolCall(name=name, arguments={"drawer": drawer}))
                told.append((text_of(result.content), result.reward, result.finished))
            await session.close()
        return told


@pytest.mark.slow
def test_seed_fixes_episodes_and_process_ends_with_its_block():
    with envs.serve(envs.drawers(7)) as here, envs.serve(seed=7) as again, envs.serve(seed=8) as other:
        first, second, third = (asyncio.run(transcript(served.url)) for served in (here, again, other))
    with envs.serve_apart(seed=7) as url:
        apart = asyncio.run(transcript(url))
    host, _, port = url.removeprefix("http://").partition(":")
    with pytest.raises(ConnectionRefusedError), socket.create_connection((host, int(port)), timeout=10):
        pass
    assert first == second == apart
    assert len(first) == 64 + 16 + 3 * 5
    assert first != third
    notes = [said for said in first if isinstance(said, tuple)]
    assert len({text for text, _, _ in notes}) > 4
    assert notes[3][1:] in {(0.0, True), (1.0, True)}


async def test_every_coin_can_be_found(gallery: envs.Served):
    async with Playing("Drawers", gallery.url, {"number": 5, "seed": 3, "split": "train"}) as play:
        rewards = [(await play.call("look", drawer=drawer)).reward for drawer in range(8)]
        assert sorted(reward for reward in rewards if reward is not None) == [0.1]
        assert (await play.call("take", drawer=rewards.index(0.1))).reward == 1.0
