"""Our hooks where slime calls them: the filter, the logs (case 14), evaluation (8), and what slime's metrics read."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs
from orl_cluster.hooks.samples import fill
from orl_core.errors import RunAborted
from orl_rollout.run_folder.metrics_log import read
from orl_testing import Fault, FaultKind

from tests.kit.trajectories import ended
from tests.slime import episode
from tests.slime.host import of_slime
from tests.slime.playing import engine, hosting

pytestmark = pytest.mark.slime
FILTER = {"dynamic_sampling_filter_path": "orl_slime.hooks.has_signal"}


@pytest.mark.parametrize("thinking", [False, "strip"])
async def test_a_group_without_signal_is_dropped_and_another_takes_its_place(
    thinking: Any, environment: str, checkpoint: Path, tmp_path: Path
):
    config = episode.settings(environment) | {"thinking": thinking}
    refusal = Fault(kind=FaultKind.STATUS, status=400, message="no", at=0)
    with (
        engine(checkpoint, [refusal], thinks=bool(thinking)) as server,
        hosting(server, checkpoint, tmp_path, config, **FILTER) as host,
    ):
        groups = await asyncio.to_thread(host.rollout)
        data = host.train_data(groups)
    assert len(groups) == 2
    assert host.metrics == {"rollout/dynamic_filter/drop_too_few_train": 1}
    assert all(any(mask) for mask in data["loss_masks"])


async def test_a_dead_environment_ends_the_run_whatever_the_filter_drops(checkpoint: Path, tmp_path: Path):
    config = episode.settings("http://127.0.0.1:9")
    changes = FILTER | {"rollout_batch_size": 16, "over_sampling_batch_size": 16}
    with engine(checkpoint) as server, hosting(server, checkpoint, tmp_path, config, **changes) as host:
        with pytest.raises(RunAborted, match="of the last 64 rollouts ended in ERROR"):
            await asyncio.wait_for(asyncio.to_thread(host.rollout), 120)
        assert not server.requests


async def test_14_the_logs_are_written_beside_slimes_own_and_its_cache_is_ours(
    environment: str, checkpoint: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.INFO)
    changes = {"orl_folder": str(tmp_path / "run")}
    with (
        engine(checkpoint) as server,
        hosting(server, checkpoint, tmp_path, episode.settings(environment), **changes) as host,
    ):
        groups = await asyncio.to_thread(host.rollout)
        host.log(groups)
        compute_metrics_from_samples = of_slime("slime.observability.rollout_metrics.compute_metrics_from_samples")

        theirs = compute_metrics_from_samples(host.args, [sample for group in groups for sample in group])
    (ours,) = read(tmp_path / "run" / "metrics.jsonl")
    hits = ours.metrics["playground/GuessNumber/cache_hits"]
    assert theirs["prefix_cache_hit_rate"] == pytest.approx(hits)
    assert 0.0 < hits < 1.0
    assert any("orl rollout 0" in record.getMessage() for record in caplog.records)
    assert any("perf 0" in record.getMessage() for record in caplog.records), "slime logs its own"


@pytest.mark.parametrize("thinking", [False, "strip"])
async def test_8_an_evaluation_counts_every_rollout_once(
    thinking: Any, environment: str, checkpoint: Path, tmp_path: Path
):
    config = episode.settings(environment) | {"thinking": thinking}
    changes = {"custom_rm_path": "orl_slime.hooks.reward", "orl_folder": str(tmp_path / "run")}
    with (
        engine(checkpoint, thinks=bool(thinking)) as server,
        hosting(server, checkpoint, tmp_path, config, **changes) as host,
    ):
        host.hold_out("held_out", tmp_path / "tasks.jsonl")
        data = await asyncio.to_thread(host.evaluate)
        host.log_evaluation(data)
    assert sorted(data["held_out"]["rewards"]) == [0.0] * 8 + [1.0] * 8
    assert data["held_out"]["truncated"] == [sample.reward == 0.0 for sample in data["held_out"]["samples"]]
    (row,) = read(tmp_path / "run" / "metrics.jsonl")
    assert (row.kind, row.metrics["playground/GuessNumber/rollouts"]) == ("eval", 16.0)


def test_speculation_and_caches_are_counted_anew_for_every_rollout(checkpoint: Path):
    Sample = of_slime("slime.utils.types.Sample")

    outcome = ended("a")
    counts = {"spec_accept_token_num": 3, "spec_draft_token_num": 4, "spec_verify_ct": 2}
    turns = tuple(
        structs.replace(turn, generations=tuple(structs.replace(one, extras=counts) for one in turn.generations))
        for turn in outcome.trajectory.turns
    )
    outcome = structs.replace(outcome, trajectory=structs.replace(outcome.trajectory, turns=turns))
    generations = sum(len(turn.generations) for turn in turns)
    sample = Sample(index=0)
    for _ in range(2):
        fill(sample, outcome, text_of=str)
        assert sample.spec_info.spec_accept_token_num == 3 * generations
        assert sample.spec_info.spec_accept_rate == 0.75
        ids = sum(len(turn.action_ids) for turn in turns)
        assert sample.spec_info.completion_token_num == ids
