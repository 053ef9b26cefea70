"""TRL's own numbers are logged by its names, and by ours where every trainer logs them."""

from __future__ import annotations

import pytest
from orl_rollout.run_folder.training_metrics import TRAINING_METRICS
from orl_trl.training.trl_metrics import NAMES, trl_metrics


def test_numbers_have_common_names() -> None:
    logs = [
        {"loss": 0.5, "entropy": float("nan"), "completions/mean_length": 10.0, "clip_ratio/region_mean": 0.0},
        {"loss": 1.5, "entropy": 0.25, "completions/mean_length": 20.0, "clip_ratio/region_mean": 0.5, "epoch": 1.0},
    ]
    metrics = trl_metrics(logs)
    common = {name: value for name, value in metrics.items() if name in TRAINING_METRICS}
    assert common == pytest.approx({"loss": 1.0, "entropy": 0.25, "response_tokens": 15.0, "clip_fraction": 0.25})
    assert metrics["completions/mean_length"] == 15.0
    assert set(NAMES.values()) <= TRAINING_METRICS.keys()
