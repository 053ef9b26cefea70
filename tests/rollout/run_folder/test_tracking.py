"""Runs are reported to Weights & Biases as the user asks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from orl_core.config import TrainerConfig, decode_config
from orl_core.errors import ConfigError
from orl_rollout.run_folder import tracking
from orl_rollout.run_folder.tracking import Tracking, tracked_by, tracking_of


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    return tmp_path / "netrc"


def trainer_of(**trainer: Any) -> TrainerConfig:
    return decode_config({"environments": {"Org/Env": {}}, "trainer": trainer}, "test").trainer


def tracked(**trainer: Any) -> Tracking:
    return tracking_of(trainer_of(**trainer))


def test_tracker_that_is_not_installed_is_refused_if_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracking, "find_spec", lambda _module: None)
    asked: dict[str, Any]
    for asked in ({"wandb_project": "mine"}, {"tensorboard": True}):
        with pytest.raises(ConfigError, match="is not installed"):
            tracked_by(trainer_of(**asked))
    monkeypatch.setenv("WANDB_API_KEY", "k" * 40)
    made = tracked_by(trainer_of())
    assert made.mode is None
    assert "wandb" in made.note


@pytest.mark.parametrize("asked", [{"wandb_project": "p"}, {"wandb_run": "r"}])
def test_asked_without_a_key_is_offline_and_said(asked: dict[str, str]) -> None:
    made = tracked(**asked)
    assert made.mode == "offline"
    assert "WANDB_API_KEY" in made.note


def test_online_without_a_key_is_refused() -> None:
    with pytest.raises(ConfigError, match="wandb login"):
        tracked(wandb_mode="online")


def test_nothing_asked_and_no_key_is_not_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    assert tracked() == Tracking()
    monkeypatch.setenv("WANDB_MODE", "online")
    assert tracked() == Tracking()


def test_key_is_the_variable_or_a_login(monkeypatch: pytest.MonkeyPatch, nothing_set: Path) -> None:
    nothing_set.write_text("machine elsewhere.example login user password hush\n", encoding="utf-8")
    assert tracked().mode is None
    nothing_set.write_text("machine api.wandb.ai login user password hush\n", encoding="utf-8")
    assert tracked().mode == tracked(wandb_project="p").mode == tracked(wandb_mode="online").mode == "online"
    nothing_set.unlink()
    monkeypatch.setenv("WANDB_API_KEY", "k" * 40)
    assert tracked().mode == "online"


def test_disabled_wins_and_is_said() -> None:
    made = tracked(wandb_mode="disabled", wandb_project="p")
    assert made.mode is None
    assert "wandb_mode" in made.note


def test_variable_of_the_mode_counts_where_none_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "k" * 40)
    monkeypatch.setenv("WANDB_MODE", "offline")
    assert tracked().mode == "offline"
    assert tracked(wandb_mode="online").mode == "online"
