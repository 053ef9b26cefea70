"""A configuration of retrain is refused with the place of each of its keys in orl."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from orl_core.config import decode_config, load_config
from orl_core.config.retrain import PLACES
from orl_core.errors import ConfigError

RETRAIN = """\
algorithm:
  name: grpo
  backend: slime
  hyperparameters:
    learning_rate: 1e-5
    num_iterations: 20
    rollout_batch_size: 4
    global_batch_size: 16
    slime_actor_num_nodes: 2
    slime_actor_num_gpus_per_node: 4
    slime_rollout_num_gpus: 8
    slime_colocate: false
    slime_rollout_temperature: 0.8
    slime_rollout_top_p: 0.9
    slime_rollout_max_response_len: 512
    slime_bf16: true
    slime_gradient_checkpointing: true
    slime_sglang_server_concurrency: 128
    slime_save_interval: 10
    slime_use_retrain_environment: true
    slime_use_retrain_rewards: true
    slime_eps_clip: 0.25
    beta: 0.1
reward_setup:
  step_reward_configs: {}
  rollout_reward_configs: {}
"""


def refused(tree: object) -> str:
    with pytest.raises(ConfigError) as error:
        decode_config(tree, "retrain.yaml")
    return str(error.value)


def test_each_key_is_answered_with_its_place(tmp_path: Path) -> None:
    file = tmp_path / "slime_grpo_config.yaml"
    file.write_text(RETRAIN, "utf-8")
    with pytest.raises(ConfigError) as error:
        load_config(file, settings={"trainer.backend": "slime"})
    told = str(error.value)
    assert str(file) in told
    others = {key for key in PLACES if key.endswith("*") or " " in key}
    for key in PLACES.keys() - others:
        assert f"`{key}`: {PLACES[key]}" in told
    assert f"`hyperparameters.slime_eps_clip`: {PLACES['hyperparameters.slime_*']}" in told
    assert f"`hyperparameters.beta`: {PLACES['any other key']}" in told


@pytest.mark.parametrize(
    "tree", [{"environments": {}, "slime_path": "x"}, {"algorithm": "grpo"}, {"environments": {}, "algorithms": {}}]
)
def test_other_mistakes_stay_mistakes_of_orl(tree: dict[str, Any]) -> None:
    assert "has no key" in refused(tree)


def test_values_of_retrain_are_not_shown() -> None:
    assert "hunter2" not in refused({"algorithm": {"hyperparameters": {"slime_wandb_key": "hunter2"}}})
