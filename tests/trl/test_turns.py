"""Advantages of turns in TRL: each id trains on the return-to-go of its own call, also in rollouts of several rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec import structs
from orl_core.config import EnvironmentConfig
from orl_core.errors import ConfigError
from orl_core.messages import ToolResult
from orl_core.trajectory import RolloutSpec, StopReason, Trajectory
from orl_rollout.results.outcome import Outcome, outcome_of
from orl_trl.run_plan.settings import check_settings, grpo_config
from orl_trl.training.training_run import trainer_of
from orl_trl.training.turns import advantages_of_rows
from transformers import AutoModelForCausalLM

from tests.kit.secrets import NO_SECRETS
from tests.trl.distance import ROUNDING, distance
from tests.trl.fakes import make_run, tasks
from tests.trl.test_several_rows import trained, turn_of

MEMBERS = 3


def outcome(*rewards: float, stop: StopReason = StopReason.FINISHED) -> Outcome:
    """Return a rollout whose turns were paid these rewards."""
    turns = tuple(
        structs.replace(turn_of(0, at), results=(ToolResult(name="act", reward=reward),))
        for at, reward in enumerate(rewards)
    )
    job = RolloutSpec(task=tasks(1)[0], rollout_id=str(rewards))
    error = "x" if stop is StopReason.ERROR else ""
    trajectory = Trajectory(job=job, turns=turns, stop_reason=stop, error=error)
    return outcome_of(trajectory, EnvironmentConfig(reward_reduction="sum"), NO_SECRETS)


def test_ids_of_a_turn_get_its_return_to_go() -> None:  # shows A29
    first, second = outcome(1.0, 2.0), outcome(1.0)
    failed = outcome(5.0, stop=StopReason.ERROR)
    found = advantages_of_rows([first, second, failed], 3, scale=False)
    (row,), (other,), (nothing,) = found
    ends = first.datums[0].ends
    assert row[: ends[0] + 1] == [2.0] * (ends[0] + 1)  # 3 from here on, and the other got 1
    assert row[ends[0] + 1 :] == [2.0] * (ends[1] - ends[0])  # nobody else came so far
    assert set(other) == {-2.0}
    assert not any(nothing)


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
    advantages = advantages_of_rows(outcomes, MEMBERS, scale=False)
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


@pytest.mark.slow
def test_turns_in_several_rows_give_the_gradient_of_one(checkpoint: Path, tmp_path: Path) -> None:
    _, expected = trained(checkpoint, tmp_path / "one", {"split": False}, make=with_turns)
    _, found = trained(checkpoint, tmp_path / "several", {"split": True}, make=with_turns)
    assert max(gradient.abs().max() for gradient in expected) > 1e-3
    assert distance(found, expected) < ROUNDING


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
