"""The history of a run: what was appended is read back, whatever a death left of the last line."""

from __future__ import annotations

from pathlib import Path

import pytest
from orl_core.config import EnvironmentConfig, RunConfig
from orl_core.errors import OrlError
from orl_rollout.run_folder.metrics_log import append, overall, read
from orl_rollout.run_folder.summary import Summary

CONFIG = RunConfig(environments={"A/B": EnvironmentConfig()})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "metrics.jsonl"
    append(path, "eval", 0, {"A/B/success": 0.25, "A/B/rollouts": 4.0}, seconds=1.0)
    append(path, "train", 1, {"A/B/valid_calls": 0.5, "A/B/rollouts": 8.0}, seconds=2.0)
    append(path, "eval", 1, {"A/B/success": 0.75, "A/B/rollouts": 4.0}, seconds=1.0)
    return path


def test_the_figures_are_those_of_first_and_last_evaluation(path: Path) -> None:
    made = Summary.of(CONFIG, read(path))
    assert (made.success_before, made.success_after) == (0.25, 0.75)
    assert (made.seconds_per_step, made.rollouts, made.steps) == (2.0, 16, 1)


def test_a_metric_over_all_environments_has_one_meaning() -> None:
    assert overall({"A/B/reward": 0.5, "reward": 0.1, "all/reward": 0.75}, "reward") == 0.75
    assert overall({"A/B/reward": 0.5, "reward": 0.1}, "reward") == 0.5
    assert overall({"loss": 0.1}, "loss") == 0.1
    assert overall({"A/B/stop/reward": 1.0}, "reward") is None


def test_a_line_after_a_torn_one_is_a_line_of_its_own(path: Path) -> None:
    append(path, "train", 2, {"A/é/reward": 0.5}, seconds=1.0)
    whole = path.read_bytes()
    last = whole.splitlines()[-1]
    for kept in range(len(last)):
        path.write_bytes(whole[: -len(last) - 1] + last[:kept])
        append(path, "train", 3, {}, seconds=1.0)
        assert [row.step for row in read(path)] == [0, 1, 1, 3]
    path.write_bytes(b'{"A/\xff": 1}\n' + whole)
    assert [row.step for row in read(path)] == [0, 1, 1, 2]


def test_step_that_is_made_again_counts_once(path: Path) -> None:
    append(path, "train", 1, {"A/B/rollouts": 6.0}, seconds=1.0)
    assert [(row.kind, row.step, row.overall("rollouts")) for row in read(path)] == [
        ("eval", 0, 4.0),
        ("eval", 1, 4.0),
        ("train", 1, 6.0),
    ]


def test_no_file_is_no_history(tmp_path: Path) -> None:
    assert read(tmp_path / "metrics.jsonl") == []
    assert Summary.of(CONFIG, []).success_before is None


def test_update_stands_in_the_row_of_its_batch(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    append(path, "train", 1, {"a/b/reward": 0.5}, seconds=2.0)
    append(path, "update", 1, {"loss": 9.0}, seconds=0.0)
    append(path, "train", 1, {"a/b/reward": 0.75}, seconds=3.0)  # made again after a restart
    append(path, "update", 1, {"loss": 0.25}, seconds=0.0)
    append(path, "update", 2, {"loss": 0.125}, seconds=0.0)
    first, second = read(path)
    assert (first.kind, first.step, first.seconds) == ("train", 1, 3.0)
    assert first.metrics == {"a/b/reward": 0.75, "loss": 0.25}
    assert (second.kind, second.step, second.metrics) == ("train", 2, {"loss": 0.125})


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux alone has a device that is full")
def test_full_disk_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.symlink_to("/dev/full")
    with pytest.raises(OrlError, match=r"metrics\.jsonl"):
        append(path, "train", 1, {"reward": 0.5}, seconds=1.0)
