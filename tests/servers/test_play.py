"""The judge of `play`: a journal and a server's log agree, and differ where either is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
from orl_rollout.episodes.journal import Journal
from orl_rollout.openreward import OpenRewardClient
from orl_rollout.runtime.circuit_breaker import CircuitBreaker
from orl_rollout.runtime.runtime import RolloutRequest, Runtime
from orl_testing import environments as envs

from tests.kit.episodes import RENDERER, config_of, model, task_of
from tests.servers.compare import episodes_of_journal, episodes_of_server
from tests.servers.serve import Logged


@pytest.fixture
async def played(tmp_path: Path) -> Path:
    """Play one episode that ends well, one with a refused call and one that the environment breaks off."""
    log = tmp_path / "server.jsonl"
    with (
        log.open("a") as lines,
        envs.serve(envs.Echo, envs.Failing, wrap=lambda app: Logged(app, lines)) as served,
        Journal(tmp_path) as journal,
    ):
        for name, actions in (
            ("Echo", [("finish",)]),
            ("Echo", [("nothing",), ("finish",)]),
            ("Failing", [("fail",)] * 9),
        ):
            config = config_of(name, served.url)
            async with OpenRewardClient(config) as client:
                breaker = CircuitBreaker(max_error_rate=1.0, group_size=1)
                runtime = Runtime(config, renderer=RENDERER, client=client, breaker=breaker, journal=journal)
                await runtime.play(RolloutRequest(task=task_of(name), rollout_id=name), model(*actions))
    return tmp_path


async def test_journal_and_log_agree(played: Path) -> None:
    ours, theirs = episodes_of_journal(played), episodes_of_server(played / "server.jsonl")
    assert ours.differences(theirs) == 0
    assert (ours.count, ours.reward, ours.failed) == (theirs.count, theirs.reward, theirs.failed) == (2, 2.0, 1)
    assert theirs.opened == theirs.closed == 3
