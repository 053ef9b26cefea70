"""miles' hooks with ours in them: dynamic filter, logs in its tracking, evaluation; and the breaker on every path."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from orl_rollout.run_folder.metrics_log import read

from tests.cluster.contract.inside import step
from tests.miles.host import flat, of_miles
from tests.miles.hosting import hosting
from tests.slime import episode
from tests.slime.playing import engine

pytestmark = pytest.mark.miles


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
