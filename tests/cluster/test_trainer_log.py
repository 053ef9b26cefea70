"""Numbers of updates go from the logs of slime and miles to metrics.jsonl, under the names that all trainers share."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from orl_cluster.hooks.trainer_hooks import staleness_of
from orl_cluster.launch.run.process import NAMES, followed, updates_in
from orl_core.config import TrainerConfig
from orl_rollout.run_folder import metrics_log
from orl_rollout.run_folder.judges import DIFFERENCE, WINDOW, fault_in
from orl_rollout.run_folder.metrics_log import TRAINING_METRICS

from tests.kit.nvml import Gpu, driver

LOGS = Path(__file__).parents[1] / "golden" / "trainer_log"


def updates_of(name: str) -> list[tuple[int, dict[str, float]]]:
    return [*updates_in((LOGS / name).read_text().splitlines())]


def test_slime_log_gives_means_over_updates_of_a_batch() -> None:
    (step, metrics), (second, torn) = updates_of("slime.log")
    assert (step, second) == (1, 2)
    common = {name: metrics[name] for name in TRAINING_METRICS if name in metrics}
    assert common == pytest.approx(
        {
            "loss": 0.0022,
            "kl": 2e-05,
            "policy_kl": -0.0005,
            "entropy": 0.5,
            "grad_norm": 1.0,
            "learning_rate": 1e-06,
            "clip_fraction": 0.001,
            "logprob_difference": 0.00072,
            "response_tokens": 151.25,
            "rollout_seconds": 1.5,
            "train_seconds": 1.52,
            "weight_sync_seconds": 0.25,
            "step_seconds": 3.02,
        }
    )
    assert metrics["train/pg_loss"] == pytest.approx(0.0022)
    assert torn == pytest.approx(
        {"train/loss": 0.002, "loss": 0.002, "rollout/response_lengths": 149.0, "response_tokens": 149.0}
    )


def test_miles_log_gives_one_batch_and_no_missing_names() -> None:
    ((step, metrics),) = updates_of("miles.log")
    assert step == 8
    assert metrics["step_seconds"] == 13.25
    assert metrics["train/ess_ratio"] == pytest.approx(0.99995)
    assert not {"kl", "entropy", "weight_sync_seconds"} & metrics.keys()


def test_names_are_common() -> None:
    assert set(NAMES.values()) <= TRAINING_METRICS.keys()


@pytest.mark.parametrize("name", ["slime.log", "miles.log", "slime_h200.log", "miles_h200.log"])
def test_differences_of_golden_logs_end_no_run(name: str) -> None:
    found = [metrics[DIFFERENCE] for _, metrics in updates_of(name) if DIFFERENCE in metrics]
    assert found
    assert fault_in(found * WINDOW, TrainerConfig().max_logprob_difference) == ""


def test_growing_log_is_followed_to_its_end(tmp_path: Path) -> None:
    log, path = tmp_path / "trainer.log", tmp_path / "metrics.jsonl"
    log.write_text("step 9: {'train/loss': 9.0}\n")
    start = log.stat().st_size
    metrics_log.append(path, "train", 1, {"a/b/reward": 0.5}, seconds=1.0)
    with followed(log, path, start=start), log.open("a") as file:
        file.write((LOGS / "slime.log").read_text())
    first, second = metrics_log.read(path)
    assert (first.step, first.kind, first.seconds) == (1, "train", 1.0)
    assert (first.overall("reward"), first.overall("entropy")) == (0.5, 0.5)
    assert (second.step, second.kind, second.overall("loss")) == (2, "train", 0.002)


def test_each_step_has_the_use_of_the_gpus(tmp_path: Path) -> None:
    log, path = tmp_path / "trainer.log", tmp_path / "metrics.jsonl"
    with driver(Gpu("GPU-a", 90, 60.0), Gpu("GPU-b", 70, 20.0)), followed(log, path):
        log.write_text((LOGS / "slime.log").read_text())
    used = [(row.step, row.overall("gpu_utilization"), row.overall("gpu_memory_gib")) for row in metrics_log.read(path)]
    assert used == [(1, pytest.approx(0.8), 60.0), (2, pytest.approx(0.8), 60.0)]


@pytest.mark.parametrize(
    ("versions", "trained", "interval", "first", "expected"),
    [
        ([["1"], ["1", "1"]], 0, 1, 0, 0.0),
        ([["2", "3"]], 3, 1, 0, 1.5),
        ([["1"]], 3, 2, 0, 3.0),
        ([["1"], ["2"]], 21, 1, 20, 0.5),
        ([["1"]], 7, 4, 5, 2.0),
        ([["2"], ["3"]], 12, 4, 5, 2.0),  # updated after batch 8 and batch 12
        ([["default"]], 1, 1, 0, None),
        ([["9"]], 3, 1, 0, None),
        ([[]], 3, 1, 0, None),
    ],
)
def test_staleness_counts_batches(
    versions: list[list[str]], trained: int, interval: int, first: int, expected: float | None
) -> None:
    samples = [SimpleNamespace(weight_versions=one) for one in versions]
    assert staleness_of(samples, trained, interval, first=first) == expected


@pytest.mark.parametrize(
    ("log", "loss", "seconds"),
    [("slime_h200.log", -0.00034701, 14.5457), ("miles_h200.log", 0.00152795, 21.9302)],
)
def test_log_of_a_gpu_run_has_the_common_names(log: str, loss: float, seconds: float) -> None:
    ((step, metrics),) = updates_of(log)
    assert step == 1
    assert metrics["loss"] == pytest.approx(loss, rel=1e-4)
    assert metrics["step_seconds"] == pytest.approx(seconds, rel=1e-4)
    assert metrics["entropy"] > 0.1
    assert metrics["learning_rate"] == 0.0004
    assert set(NAMES.values()) - {"kl"} <= metrics.keys()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux alone has a device that is full")
def test_log_is_followed_through_a_full_disk(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The trainer continues, and no thread dies."""
    log, path = tmp_path / "trainer.log", tmp_path / "metrics.jsonl"
    path.symlink_to("/dev/full")
    log.touch()
    with followed(log, path), log.open("a") as file:
        file.write((LOGS / "slime.log").read_text())
    assert caplog.text.count("No space left") == 2
