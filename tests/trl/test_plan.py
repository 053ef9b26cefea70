"""`orl train trl --dry-run` and `orl doctor` refuse what the training would refuse."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec import structs
from orl_core.errors import ConfigError
from orl_rollout.run_folder.contract import Plan
from orl_trl import plan

from tests.trl.fakes import make_run
from tests.trl.stand_in import served


def planned(folder: Path, model: Path | str | None, *extra: str, **trainer: Any) -> Plan:
    return plan(structs.replace(make_run(folder / "run", model, **trainer), extra=extra))


def test_plan_says_what_a_run_would_do(checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):  # shows A25
    monkeypatch.delenv("OPENREWARD_API_KEY", raising=False)
    made = planned(tmp_path, checkpoint, flags={"beta": 0.1})
    assert f"would train {checkpoint} with trl" in made.command
    assert "2 steps of 2 x 4 rollouts, 2 updates each" in made.command
    assert "learning rate 0.001" in made.command
    assert "trains all weights with adamw_torch_fused, in micro-batches of 8192 ids" in made.command
    assert made.problems == ("not set in the environment: OPENREWARD_API_KEY",)
    assert made.notes == ()


@pytest.mark.parametrize(
    ("trainer", "extra", "subject"),
    [
        ({"flags": {"no_such": 1}}, (), "`no_such`"),
        ({"load": "/nowhere"}, (), "/nowhere"),
        ({"advantage_estimator": "ppo"}, (), "ppo"),
        ({"rollout_batch_size": 5}, (), "4 tasks, and a step takes 5"),
    ],
)
def test_setting_that_training_refuses_is_refused(  # shows G25
    checkpoint: Path, tmp_path: Path, trainer: dict[str, Any], extra: tuple[str], subject: str
):
    with pytest.raises(ConfigError) as refusal:
        planned(tmp_path, checkpoint, *extra, **trainer)
    assert subject in str(refusal.value)


def test_plan_names_adapters_and_micro_batches(checkpoint: Path, tmp_path: Path):
    made = planned(tmp_path, checkpoint, lora_rank=8, max_tokens_per_gpu=512, optimizer="sgd")
    assert "trains LoRA adapters of rank 8 with sgd, in micro-batches of 512 ids" in made.command


def test_model_is_looked_at_without_its_weights(tmp_path: Path):
    for model in (None, str(tmp_path / "none"), str(tmp_path)):
        with pytest.raises(ConfigError, match="model"):
            planned(tmp_path, model)
    unseen = planned(tmp_path, "some/name")
    assert "some/name" in " ".join(unseen.notes)
    assert "some/name" in unseen.memory


def test_engine_at_an_address_is_asked_whether_it_is_ready(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("OPENREWARD_API_KEY", "or-key-0123456789")
    with served() as (server, _):
        assert planned(tmp_path, checkpoint, engine=server.url).problems == ()
    (problem,) = planned(tmp_path, checkpoint, engine=server.url).problems
    assert server.url in problem
