"""miles' fully asynchronous rollout (case 10): groups with failures or stale ones are replaced; the breaker ends it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from orl_miles.generate import RunEnded
from orl_testing import Fault, FaultKind

from tests.miles.host import flat
from tests.miles.hosting import SECONDS, hosting
from tests.slime import episode
from tests.slime.playing import engine

pytestmark = pytest.mark.miles
ASYNC = {"fully_async": True}
METRICS = "rollout/fully_async/"


@pytest.mark.parametrize("handler", ["drop", "retry"])
async def test_10_a_group_with_a_failure_is_dropped_or_played_anew(
    handler: str, environment: str, checkpoint: Path, tmp_path: Path
):
    refusal = Fault(kind=FaultKind.STATUS, status=400, message="no", at=0)
    flags = ASYNC | {"async_unused_samples_handler": handler}
    with (
        engine(checkpoint, [refusal]) as server,
        hosting(server, checkpoint, tmp_path, episode.settings(environment), **flags) as host,
    ):
        groups = await played(host, 0)
        host.log(groups)
        data = host.train_data(groups)
        assert host.metrics is not None
        assert host.metrics[f"{METRICS}aborted_groups_filtered"] == 1
        groups += await played(host, 1)
    assert {sample.status.value for sample in flat(groups)} <= {"completed", "truncated"}
    assert all(any(mask) for mask in data["loss_masks"])
    seen = {sample.index for sample in flat(groups)}
    assert ({0, 1} <= seen) if handler == "retry" else len({0, 1, 2, 3} - seen) == 2


# shows A19
async def test_10_what_older_weights_played_is_too_stale(environment: str, checkpoint: Path, tmp_path: Path):
    """The engine plays with weights 1; the trainer has made version 3 of them, and bears one version between."""
    flags = ASYNC | {"max_weight_staleness": 1}
    with engine(checkpoint) as server:
        server.weight_version = "1"
        with hosting(server, checkpoint, tmp_path, episode.settings(environment), **flags) as host:
            first = await played(host, 0, version=2)
            assert host.metrics is not None
            assert host.metrics[f"{METRICS}max_staleness"] == 1
            asyncio.get_running_loop().call_later(1.0, setattr, server, "weight_version", "3")
            second = await played(host, 1, version=3)
            assert host.metrics[f"{METRICS}stale_groups_filtered"] >= 1
    assert {version for sample in flat(first) for version in sample.weight_versions} == {"1"}
    assert "1" not in {min(sample.weight_versions) for sample in flat(second)}


async def test_10_a_dead_environment_ends_the_job(checkpoint: Path, tmp_path: Path):
    config = episode.settings("http://127.0.0.1:9")
    flags = ASYNC | {"rollout_batch_size": 16}
    with (
        engine(checkpoint) as server,
        hosting(server, checkpoint, tmp_path, config, **flags) as host,
    ):
        with pytest.raises(RunEnded, match="of the last 64 rollouts ended in ERROR"):
            host.log(await played(host, 0))
        assert not server.requests


async def test_10_the_workers_loop_evaluates_too(environment: str, checkpoint: Path, tmp_path: Path):
    held_out = episode.make_tasks(tmp_path / "held_out.jsonl", 2)
    flags = ASYNC | {"eval_prompt_data": ["held_out", held_out], "n_samples_per_eval_prompt": 2}
    with (
        engine(checkpoint) as server,
        hosting(server, checkpoint, tmp_path, episode.settings(environment), **flags) as host,
    ):
        await played(host, 0)
        evaluated = await asyncio.wait_for(asyncio.to_thread(host.evaluate), SECONDS)
    assert len(evaluated["held_out"]["rewards"]) == 4


async def played(host: Any, rollout_id: int, version: int | None = None) -> list[list[Any]]:
    return await asyncio.wait_for(asyncio.to_thread(host.rollout, rollout_id, version), SECONDS)
