"""slime prints the lines and the names that `orl_cluster.launch.run.trainer_log` reads."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

pytestmark = pytest.mark.slime


def source(*names: str) -> str:
    spec = find_spec("slime")
    assert spec is not None
    assert spec.submodule_search_locations
    root = Path(spec.submodule_search_locations[0])
    return "\n".join((root / name).read_text(encoding="utf-8") for name in names)


def test_lines_and_names_are_those_of_slime() -> None:
    training = source("backends/megatron_utils/model.py", "backends/megatron_utils/loss.py")
    metrics = source("observability/train_metric_utils.py")
    assert 'logger.info(f"{role_tag}step {accumulated_step_id}: {log_dict}")' in training
    assert 'logger.info(f"{metric_name} {rollout_id}: {reduced_log_dict}")' in metrics
    assert 'logger.info(f"perf {rollout_id}: {log_dict}")' in metrics
    for name in ("loss", "kl_loss", "ppo_kl", "entropy_loss", "pg_clipfrac", "train_rollout_logprob_abs_diff"):
        assert f'"{name}"' in training
    for name in ("grad_norm", "lr-pg_{param_group_id}"):
        assert f"{{role_tag}}{name}" in training
    for name in ("train_wait", "train", "step"):
        assert f'"perf/{name}_time"' in metrics
    assert 'gather_log_data("rollout"' in metrics
