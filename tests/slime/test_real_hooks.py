"""Our hooks where slime calls them: the filter, the logs (case 14), evaluation (8), and what slime's metrics read."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest
from msgspec import structs
from orl_cluster.hooks.samples import fill
from orl_rollout.run_folder.metrics_log import read

from tests.kit.trajectories import ended
from tests.slime import episode
from tests.slime.host import of_slime
from tests.slime.playing import engine, hosting

pytestmark = pytest.mark.slime


async def test_14_the_logs_are_written_beside_slimes_own_and_its_cache_is_ours(
    environment: str, checkpoint: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.INFO)
    with (
        engine(checkpoint) as server,
        hosting(server, checkpoint, tmp_path, episode.settings(environment)) as host,
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
