"""Advantages of turns in TRL: each id trains on the return-to-go of its own call, also in rollouts of several rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec import structs
from orl_core.errors import ConfigError
from orl_rollout.training.rows import advantages_per_id
from orl_trl.run_plan.settings import check_settings, grpo_config
from orl_trl.training.training_run import trainer_of
from transformers import AutoModelForCausalLM

from tests.trl.distance import ROUNDING, distance
from tests.trl.fakes import make_run
from tests.trl.test_several_rows import trained

MEMBERS = 3


def with_turns(*arguments: Any) -> Any:
    trainer = trainer_of(*arguments)
    trainer.turn_advantages = True
    return trainer


@pytest.mark.slow
def test_gradient_is_that_of_advantages_of_turns(checkpoint: Path, tmp_path: Path) -> None:  # shows A29
    made: list[Any] = []

    def make(*arguments: Any) -> Any:
        made.append(arguments)
        return with_turns(*arguments)

    flags: dict[str, Any] = {"scale_rewards": "none"}
    _, plain = trained(checkpoint, tmp_path / "plain", {"noise": 0.0}, **flags)
    _, found = trained(checkpoint, tmp_path / "turns", {"noise": 0.0}, make=make, **flags)
    outcomes = made[0][3].outcomes
    advantages = advantages_per_id(outcomes, MEMBERS, center=True, scale=False, turns=True)
    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype="float32")
    trained_ids = sum(sum(one.datums[0].loss_mask) for one in outcomes)
    for one, (own,) in zip(outcomes, advantages, strict=True):
        datum = one.datums[0]
        ids = torch.tensor([[*datum.prompt, *datum.response]])
        scores = model(ids).logits[0, len(datum.prompt) - 1 : -1].log_softmax(-1)
        logprobs = scores.gather(1, torch.tensor(datum.response)[:, None])[:, 0]
        (-(logprobs * torch.tensor(own) * torch.tensor(datum.loss_mask)).sum() / trained_ids).backward()
    expected = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    assert distance(found, expected) < ROUNDING
    assert distance(found, plain) > 100 * ROUNDING


@pytest.mark.parametrize(
    ("flags", "name"),
    [
        ({"importance_sampling_level": "sequence"}, "importance_sampling_level"),
        ({"loss_type": "vespo", "vllm_importance_sampling_mode": "token_truncate"}, "loss_type"),
        ({"scale_rewards": "batch"}, "scale_rewards"),
        ({"off_policy_mask_threshold": 0.5}, "off_policy_mask_threshold"),
    ],
)
def test_option_that_mixes_turns_is_refused(tmp_path: Path, flags: dict[str, Any], name: str) -> None:
    run = make_run(tmp_path / "run", "some/model", flags=flags)
    grpo_config(run, parameters=1)
    environments = {key: structs.replace(one, reward_reduction="sum") for key, one in run.config.environments.items()}
    config = structs.replace(run.config, environments=environments, turn_advantages=True)
    assert check_settings(config) == "some/model"
    with pytest.raises(ConfigError, match=name):
        grpo_config(structs.replace(run, config=config), parameters=1)
