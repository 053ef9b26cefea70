"""miles prints the lines and the names that `orl_cluster.launch.run.trainer_log` reads."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

pytestmark = pytest.mark.miles


def source(*names: str) -> str:
    spec = find_spec("miles")
    assert spec is not None
    assert spec.submodule_search_locations
    root = Path(spec.submodule_search_locations[0])
    return "\n".join((root / name).read_text(encoding="utf-8") for name in names)


def test_lines_and_names_are_those_of_miles() -> None:
    logs = source("backends/training_utils/log_utils.py")
    losses = source("backends/training_utils/loss_hub/losses.py")
    perf = source("utils/train_metric_utils.py")
    assert 'logger.info(f"{role_tag}step {accumulated_step_id}: {log_dict_out}")' in logs
    assert 'logger.info(f"{metric_name} {rollout_id}: {reduced_log_dict}")' in logs
    assert 'gather_log_data("rollout"' in logs
    assert 'logger.info(f"perf {rollout_id}: {log_dict}")' in perf
    for name in ("loss", "kl_loss", "ppo_kl", "entropy_loss", "pg_clipfrac", "train_rollout_logprob_abs_diff"):
        assert f'"{name}"' in losses
    assert "train/{role_tag}grad_norm" in logs
    assert "lr-pg_{param_group_id}" in source("backends/fsdp_utils/actor.py", "backends/megatron_utils/model.py")
    for name in ("train_wait", "train", "step"):
        assert f'"perf/{name}_time"' in perf
