"""The settings of a run's updates: every option reaches them, and what cannot be obeyed is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec import structs
from orl_core.errors import ConfigError
from orl_local.options import LocalOptions
from orl_local.settings import Settings, settings_of

from tests.local.fakes import make_run

TINY, REAL = 400_000, 600_000_000


def settings(folder: Path, *words: str, parameters: int | None = TINY, **trainer: Any) -> Settings:
    return settings_of(make_run(folder, "m", **trainer).config, parameters, words)


# A value of each option, the field of the settings, and what it has then.
FIELDS: dict[str, tuple[Any, str, Any]] = {
    "lr": (0.5, "lr", 0.5),
    "lr_decay_style": ("cosine", "lr_decay_style", "cosine"),
    "weight_decay": (0.25, "weight_decay", 0.25),
    "adam_beta1": (0.5, "adam_beta1", 0.5),
    "adam_beta2": (0.5, "adam_beta2", 0.5),
    "adam_eps": (0.5, "adam_eps", 0.5),
    "num_rollout": (9, "steps", 9),
    "temperature": (0.5, "temperature", 0.5),
    "seed": (7, "seed", 7),
    "max_tokens_per_gpu": (512, "tokens", 512),
    "max_logprob_difference": (0.5, "max_logprob_difference", 0.5),
    "lora_rank": (8, "lora_rank", 8),
    "optimizer": ("adafactor", "optimizer", "adafactor"),
    "updates": (3, "updates", 3),
    "kl_coef": (0.5, "kl_coef", 0.5),
    "max_grad_norm": (0.0, "max_grad_norm", 0.0),
    "warmup": (0, "warmup", 0),
    "checkpointing": ("on", "recompute", True),
    "correction": ("token_mask", "correction", "token_mask"),
    "correction_cap": (2.0, "correction_cap", 2.0),
}
ELSEWHERE = {
    "engine",
    "num_gpus",
    "rollout_gpus",
    "sharding",
    "asynchronous",
    "save_total_limit",
    "clip_low",
    "clip_high",
}  # or below


@pytest.mark.parametrize("option", FIELDS)
def test_option_reaches_the_settings(tmp_path: Path, option: str) -> None:
    value, field, expected = FIELDS[option]
    assert getattr(settings(tmp_path, **{option: value}), field) == expected
    assert getattr(settings(tmp_path), field) != expected


def test_each_option_has_its_place() -> None:
    assert {*LocalOptions.__struct_fields__} <= FIELDS.keys() | ELSEWHERE


@pytest.mark.parametrize(
    ("trainer", "parameters", "rate"),
    [
        ({}, TINY, 4e-4),
        ({}, REAL, 1e-6),
        ({}, None, 1e-6),
        ({"lora_rank": 8}, TINY, 4e-4),
        ({"lora_rank": 8}, REAL, 1e-5),
    ],
)
def test_default_learning_rate_fits_the_model(tmp_path: Path, trainer: dict[str, Any], parameters: int, rate: float):
    assert settings(tmp_path, lr=None, parameters=parameters, **trainer).lr == pytest.approx(rate)


def test_step_of_odd_rollouts_has_one_update(tmp_path: Path) -> None:
    assert settings(tmp_path).updates == 2
    assert settings(tmp_path, n_samples=3, rollout_batch_size=3).updates == 1


@pytest.mark.parametrize(
    ("trainer", "low", "high", "cap"),
    [
        ({}, 0.2, 0.2, None),
        ({"clip_low": 0.1, "clip_high": 0.3}, 0.1, 0.3, None),
        ({"advantage_estimator": "gspo"}, 3e-4, 4e-4, None),
        ({"advantage_estimator": "gspo", "clip_high": 0.0}, 3e-4, 0.0, None),
        ({"advantage_estimator": "cispo"}, 0.2, 0.2, 5.0),
        ({"advantage_estimator": "cispo", "clip_high": 2.0}, 0.2, 0.2, 3.0),
    ],
)
def test_bounds_are_those_of_the_options(tmp_path: Path, trainer: dict[str, Any], low: float, high: float, cap: Any):
    made = settings(tmp_path, **trainer).algorithm
    assert (made.low, made.high, made.cap) == (low, high, cap)


@pytest.mark.parametrize(
    ("trainer", "words", "said"),
    [
        ({"advantage_estimator": "ppo"}, (), "grpo, gspo, cispo, dr_grpo"),
        ({"advantage_estimator": "cispo", "clip_low": 0.1}, (), "`clip_low`"),
        ({"correction": "off", "correction_cap": 2.0}, (), "`correction_cap`"),
        ({"correction": "off", "asynchronous": True}, (), "`async`"),
        ({"optimizer": "adamw_8bit"}, (), "bitsandbytes"),
        ({"optimizer": "adafactor", "adam_beta2": 0.9}, (), "`adam_beta2`"),
        ({"optimizer": "adafactor", "adam_eps": 1e-9}, (), "`adam_eps`"),
        ({}, ("--epsilon-high", "0.3"), "orl train trl"),
        ({}, ("stray",), "`stray`"),
    ],
)
def test_what_cannot_be_obeyed_is_refused_in_one_line(
    tmp_path: Path, trainer: dict[str, Any], words: tuple[str, ...], said: str
) -> None:
    with pytest.raises(ConfigError) as refusal:
        settings(tmp_path, *words, **trainer)
    assert said in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_ratio_of_a_rollout_takes_no_advantages_of_turns(tmp_path: Path) -> None:
    config = structs.replace(make_run(tmp_path, "m", advantage_estimator="gspo").config, turn_advantages=True)
    with pytest.raises(ConfigError, match="turn_advantages"):
        settings_of(config, TINY)
