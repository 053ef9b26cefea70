"""The correction for the difference between engine and trainer, held against TRL's own with vLLM on the same batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from orl_core.errors import ConfigError
from orl_trl.engine.in_process_engine import InProcessEngine
from orl_trl.run_plan.settings import MODES, grpo_config
from orl_trl.run_plan.training_plan import plan_of
from orl_trl.training.importance import Difference, Synchronized, importance_ratios
from orl_trl.training.rollouts import Rollouts
from orl_trl.training.training_run import quiet_trl, trainer_of
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl.trainer import grpo_trainer
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer

from tests.trl.distance import ROUNDING, distance
from tests.trl.fakes import make_run
from tests.trl.test_several_rows import GROUP, Recorded, trained

NOISY = {"noise": 0.3}
DIFFERENCE = "sampling/sampling_logp_difference"


class Vllm(Synchronized):
    """TRL's client of vLLM, without a process of vLLM."""

    def __init__(self, **_: Any) -> None:
        pass


def settings_of(folder: Path, checkpoint: Path | str | None, **flags: Any) -> tuple[Any, GRPOConfig]:
    run = make_run(folder, checkpoint, **GROUP, flags=flags)
    return run, grpo_config(run, parameters=1)


def with_vllm(model: Any, name: str, config: GRPOConfig, rollouts: Rollouts) -> GRPOTrainer:
    """Make TRL's own trainer with vLLM."""
    config.use_vllm, config.vllm_mode = True, "colocate"
    return GRPOTrainer(
        model=model,
        reward_funcs=[rollouts.reward],
        args=config,
        train_dataset=Dataset.from_dict({"prompt": list(rollouts.plan.tasks)}),
        processing_class=AutoTokenizer.from_pretrained(name, padding_side="left"),
        rollout_func=rollouts,
    )


def log_of(trainer: Any) -> dict[str, float]:
    log = next(row for row in trainer.state.log_history if "loss" in row)
    return {name: value for name, value in log.items() if name in ("loss", "grad_norm") or name.startswith("sampling/")}


@pytest.fixture
def _vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grpo_trainer, "VLLMGeneration", Vllm)


@pytest.mark.slow
@pytest.mark.usefixtures("_vllm")
@pytest.mark.parametrize("mode", [MODES[0], MODES[-1]])
def test_gradient_is_that_of_trl_with_vllm(checkpoint: Path, tmp_path: Path, mode: str) -> None:  # shows A4
    flags: dict[str, Any] = {"vllm_importance_sampling_mode": mode, "vllm_importance_sampling_clip_max": 1.2}
    theirs, expected = trained(checkpoint, tmp_path / "theirs", NOISY, make=with_vllm, **flags)
    ours, found = trained(checkpoint, tmp_path / "ours", NOISY, **flags)
    assert distance(found, expected) < ROUNDING
    assert log_of(ours) == pytest.approx(log_of(theirs), abs=1e-6)
    assert 0.1 < log_of(ours)[f"{DIFFERENCE}/mean"] < log_of(ours)[f"{DIFFERENCE}/max"] <= 0.301


@pytest.mark.usefixtures("_vllm")
def test_ratios_of_rows_are_trls_formula(checkpoint: Path, tmp_path: Path) -> None:
    """TRL's own code path, once for each mode, over one batch."""
    run, config = settings_of(tmp_path / "run", checkpoint)
    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype="float32")
    player = Recorded(model.eval(), noise=0.3)
    bounds = ((1.2, None), (1.2, 0.9), (None, 0.95))
    with quiet_trl(), Rollouts(plan_of(run, config), InProcessEngine(model), player.open) as rollouts:
        trainer: Any = trainer_of(model, str(checkpoint), config, rollouts)
        inputs = [{"prompt": next(iter(rollouts.plan.tasks))}] * 3
        for mode, (most, least) in ((mode, bound) for mode in MODES for bound in bounds):
            config.vllm_importance_sampling_mode = trainer.vllm_importance_sampling_mode = mode
            config.vllm_importance_sampling_clip_max = trainer.vllm_importance_sampling_clip_max = most
            config.vllm_importance_sampling_clip_min = trainer.vllm_importance_sampling_clip_min = least
            batch = trainer._generate_and_score_completions(inputs)
            mask = batch["completion_mask"] * batch["tool_mask"]
            values = (batch["old_per_token_logps"] - batch["sampling_per_token_logps"]) * mask
            difference = Difference(values=values, mask=mask.bool(), owners=torch.arange(3))
            found, wanted = importance_ratios(difference, config), batch["importance_sampling_ratio"]
            torch.testing.assert_close(found, wanted)
            assert found.unique().numel() > 1
            theirs = {name: told[-1] for name, told in trainer._metrics["eval"].items() if name.startswith("sampling")}
            assert difference.metrics(found) == pytest.approx(theirs)


def test_rows_of_a_rollout_share_the_ratio_of_their_sequence(tmp_path: Path) -> None:
    _, config = settings_of(tmp_path / "run", "m")
    values = torch.tensor([[0.5, 0.0], [-0.2, 0.1], [0.25, 0.25]])
    difference = Difference(values=values, mask=torch.ones(3, 2, dtype=torch.bool), owners=torch.tensor([0, 1, 0]))
    found = importance_ratios(difference, config)
    torch.testing.assert_close(found, torch.tensor([[1.0], [-0.1], [1.0]]).exp())
    assert difference.metrics(found)["sampling/importance_sampling_ratio/mean"] == pytest.approx(
        float((torch.tensor([1.0, -0.1]).exp()).mean())
    )


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"vllm_importance_sampling_mode": "sequence"}, "vllm_importance_sampling_mode"),
        ({"loss_type": "vespo"}, "token_truncate"),
    ],
)
def test_flag_that_has_no_effect_is_refused(tmp_path: Path, flags: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        settings_of(tmp_path / "run", "m", **flags)
