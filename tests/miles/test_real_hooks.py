"""miles' hooks with ours in them: dynamic filter, logs in its tracking, evaluation; and the breaker on every path."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from orl_miles.generate import RunEnded
from orl_rollout.run_folder.metrics_log import read
from orl_testing import Fault, FaultKind

from tests.miles.host import flat, of_miles
from tests.miles.hosting import SECONDS, hosting, step
from tests.slime import episode
from tests.slime.playing import engine

pytestmark = pytest.mark.miles
FILTER = {"dynamic_sampling_filter_path": "orl_miles.hooks.has_signal"}


class Tracker:
    """One more backend of miles' tracking, which keeps what it would send."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def log(self, metrics: dict[str, Any], step: int | None = None, **_: Any) -> None:
        self.rows.append(dict(metrics))


@pytest.fixture
def tracker(monkeypatch: pytest.MonkeyPatch) -> Tracker:
    tracker = Tracker()
    manager = of_miles("miles.utils.tracking_utils.tracking._manager")
    monkeypatch.setattr(manager, "_backends", [tracker])
    return tracker


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
        groups, data = await step(host)
    assert len(groups) == 2
    assert host.metrics == {"rollout/dynamic_filter/drop_too_few_train": 1}
    assert all(any(mask) for mask in data["loss_masks"])


CHECK = {"dynamic_sampling_filter_path": "miles.rollout.filter_hub.dynamic_sampling_filters.check_no_aborted"}


@pytest.mark.parametrize("filtered", [{}, FILTER, CHECK], ids=["no filter", "has_signal", "check_no_aborted"])
async def test_a_dead_environment_ends_the_run_whatever_the_filter_drops(
    filtered: dict[str, Any], checkpoint: Path, tmp_path: Path
):
    config = episode.settings("http://127.0.0.1:9")
    flags = filtered | {"rollout_batch_size": 40}
    with (
        engine(checkpoint) as server,
        hosting(server, checkpoint, tmp_path, config, **flags) as host,
    ):
        with pytest.raises(RunEnded, match="of the last 64 rollouts ended in ERROR"):
            await step(host)
        assert not server.requests


async def test_14_the_logs_are_in_miles_tracking_and_its_cache_is_ours(
    environment: str, checkpoint: Path, tmp_path: Path, tracker: Tracker
):
    with (
        engine(checkpoint) as server,
        hosting(server, checkpoint, tmp_path, episode.settings(environment)) as host,
    ):
        groups, _ = await step(host)
    ours, theirs = tracker.rows
    hits = ours["rollout/playground/GuessNumber/cache_hits"]
    assert (ours["rollout/step"], theirs["rollout/step"]) == (0, 0)
    assert theirs["rollout/prefix_cache_hit_rate"] == pytest.approx(hits)
    assert 0.0 < hits < 1.0
    (row,) = read(tmp_path / "run" / "metrics.jsonl")
    assert row.metrics["playground/GuessNumber/cache_hits"] == pytest.approx(hits)
    assert theirs["perf/non_generation_time/max"] == max(sample.non_generation_time for sample in flat(groups)) > 0


@pytest.mark.parametrize("thinking", [False, "strip"])
async def test_8_an_evaluation_counts_every_rollout_once(
    thinking: Any, environment: str, checkpoint: Path, tmp_path: Path, tracker: Tracker
):
    config = episode.settings(environment) | {"thinking": thinking}
    held_out = episode.make_tasks(tmp_path / "held_out.jsonl", 8)
    flags = {
        "custom_rm_path": "orl_miles.hooks.reward",
        "eval_prompt_data": ["held_out", held_out],
        "n_samples_per_eval_prompt": 2,
    }
    with (
        engine(checkpoint, thinks=bool(thinking)) as server,
        hosting(server, checkpoint, tmp_path, config, **flags) as host,
    ):
        data = await asyncio.wait_for(asyncio.to_thread(host.evaluate), SECONDS)
        host.log_evaluation(data)
    assert sorted(data["held_out"]["rewards"]) == [0.0] * 8 + [1.0] * 8
    assert data["held_out"]["truncated"] == [sample.reward == 0.0 for sample in data["held_out"]["samples"]]
    ours, theirs = tracker.rows
    assert ours["eval/playground/GuessNumber/rollouts"] == 16.0
    assert theirs["eval/held_out"] == 0.5
    (row,) = read(tmp_path / "run" / "metrics.jsonl")
    assert (row.kind, row.metrics["playground/GuessNumber/rollouts"]) == ("eval", 16.0)
