"""The dynamic filter on the miniature's samples: what has no signal is dropped, for a reason that can be read."""

from __future__ import annotations

from pathlib import Path

import pytest
from orl_cluster.hooks.group_scores import OFFERED
from orl_slime.hooks import has_signal

from tests.slime.miniature import Sample, arguments


def sample(index: int, reward: float, *, trains: bool = True, **changes: object) -> Sample:
    status = Sample.Status.COMPLETED if trains else Sample.Status.FAILED
    return Sample(index=index, reward=reward, loss_mask=[int(trains)], response_length=1, status=status, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("group", "kept"),
    [
        ([sample(0, 1.0), sample(1, 0.0)], True),
        ([sample(0, 1.0), sample(1, 1.0)], False),
        ([sample(0, 1.0), sample(1, 1.0 + 1e-9)], False),
        ([sample(0, 1.0), sample(1, 0.0, trains=False)], False),
        ([sample(0, 1.0, trains=False), sample(1, 0.0, trains=False)], False),
        ([sample(0, 1.0)], True),
        ([sample(0, 0.0, trains=False)], False),
        ([[sample(0, 1.0), sample(0, 1.0)], [sample(1, 0.0)]], True),
        ([[sample(0, 1.0), sample(0, 1.0)], [sample(1, 0.0, trains=False)]], False),
        ([[sample(0, 1.0, rollout_id=0), sample(7, 1.0, rollout_id=0)], [sample(1, 1.0)]], False),
        ([sample(0, 1.0, metadata={OFFERED: []}), sample(1, 1.0, metadata={OFFERED: []})], True),
        ([sample(0, 1.0, remove_sample=True), sample(1, 0.0)], False),
    ],
)
def test_only_groups_with_a_signal_are_kept(group: list[Sample], kept: bool):
    answer = has_signal(arguments(), group)
    assert getattr(answer, "keep", answer) is kept  # slime's own answer, where a test has loaded slime before


def test_filter_that_drops_every_group_warns_once(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    """The trainer samples on and makes no step: no row of metrics tells that there is no signal."""
    args = arguments(rollout_batch_size=2, orl_folder=str(tmp_path))
    for _ in range(5):
        has_signal(args, [sample(0, 0.0), sample(1, 0.0)])
    has_signal(args, [sample(0, 1.0), sample(1, 0.0)])
    for _ in range(5):
        has_signal(args, [sample(0, 0.0), sample(1, 0.0)])
    assert "dropped" not in caplog.text
    for _ in range(5):
        has_signal(args, [sample(0, 0.0), sample(1, 0.0)])
    assert caplog.text.count("dropped 6 groups in a row, the latest for equal_rewards_0.0") == 1
