"""The settings of TRL: every option of the configuration, its flags, those that orl owns, and trackers."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import orl_rollout.run_folder.tracking
import pytest
import torch
import wandb
from msgspec import structs
from orl_core.errors import ConfigError
from orl_rollout.run_folder.tracking import tracking
from orl_trl.run_plan.owned_flags import GROUPS, NAMES, OWNED
from orl_trl.run_plan.settings import grpo_config, updates_per_step

from tests.trl.fakes import make_run

TINY = 400_000


def settings(tmp_path: Path, *extra: str, parameters: int = TINY, **trainer: Any):
    run = make_run(tmp_path, "m", **trainer)
    return grpo_config(structs.replace(run, extra=extra), parameters=parameters)


def test_shared_options_and_defaults(tmp_path: Path):
    made = settings(tmp_path, n_samples=16, rollout_batch_size=8, num_rollout=50, temperature=0.8, seed=3)
    assert (made.num_generations, made.generation_batch_size) == (16, 128)
    assert (made.per_device_train_batch_size, made.steps_per_generation, made.gradient_accumulation_steps) == (64, 2, 1)
    assert made.max_steps == 100
    assert updates_per_step(made) == 2
    assert (made.learning_rate, made.temperature, made.seed) == (1e-3, 0.8, 3)
    assert (made.loss_type, made.beta, made.adam_beta2, made.weight_decay) == ("dapo", 0.0, 0.99, 0.0)
    assert made.report_to == []


@pytest.mark.parametrize("rows", [{}, {"n_samples": 3, "rollout_batch_size": 3}, {"flags": {"num_iterations": 2}}])
def test_save_interval_counts_steps(tmp_path: Path, rows: dict[str, Any]):
    """TRL counts updates, of which a step makes several."""
    made = settings(tmp_path, save_interval=3, num_rollout=9, **rows)
    assert (made.save_steps, made.max_steps) == (3 * updates_per_step(made), 9 * updates_per_step(made))


def test_one_of_several_gpus_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    made = settings(tmp_path, flags={"use_cpu": False})
    assert (made.n_gpu, made.train_batch_size) == (1, made.per_device_train_batch_size)


@pytest.mark.parametrize(
    ("trainer", "parameters", "rate"),
    [({}, TINY, 4e-4), ({}, 600_000_000, 1e-6), ({"lora_rank": 8}, TINY, 4e-4), ({"lora_rank": 8}, 600_000_000, 1e-5)],
)
def test_default_learning_rate_fits_the_model(tmp_path: Path, trainer: dict[str, Any], parameters: int, rate: float):
    made = settings(tmp_path, lr=None, parameters=parameters, **trainer)
    assert made.learning_rate == pytest.approx(rate)
    assert settings(tmp_path, **trainer).learning_rate == 1e-3


def test_gspo_takes_ratios_of_sequences(tmp_path: Path):  # shows A20
    made = settings(tmp_path, advantage_estimator="gspo")
    assert (made.importance_sampling_level, made.loss_type) == ("sequence", "grpo")
    assert (made.epsilon, made.epsilon_high) == (3e-4, 4e-4)
    assert settings(tmp_path, "--epsilon-high", "0.1", advantage_estimator="gspo").epsilon_high == 0.1


def test_flags_accept_any_spelling_and_command_line_wins(tmp_path: Path):
    flags = {"--loss-type": "grpo", "beta": 0.01, "--num_iterations": 2, "mask-truncated-completions": True}
    made = settings(tmp_path, "--beta", "0.02", "--no-shuffle-dataset", flags={**flags, "epsilon_high": None})
    assert (made.loss_type, made.beta, made.num_iterations) == ("grpo", 0.02, 2)
    assert made.mask_truncated_completions is True
    assert made.shuffle_dataset is False
    assert made.epsilon_high is None
    assert updates_per_step(made) == 4
    assert made.max_steps == 8


def test_smaller_passes_leave_the_number_of_updates(tmp_path: Path):  # shows G18
    made = settings(tmp_path, flags={"per_device_train_batch_size": 2})
    assert (made.per_device_train_batch_size, made.steps_per_generation, made.gradient_accumulation_steps) == (2, 4, 2)
    assert updates_per_step(made) == 2


@pytest.mark.parametrize(
    ("trainer", "extra", "said"),
    [
        ({"flags": {"los_type": "grpo"}}, (), "no `los_type`; did you mean loss_type?"),
        ({}, ("--epsilon-hihg", "0.3"), "no `epsilon_hihg`; did you mean epsilon_high?"),
        ({}, ("stray",), "no `stray`"),
        ({"flags": {"beta": "much"}}, (), "beta: invalid float value: 'much'"),
        ({"flags": {"max_steps": 3}}, (), "`max_steps` is refused: `num_rollout`"),
        ({}, ("--max-completion-length", "64"), "`rollout.turn_tokens`"),
        ({}, ("--temperature", "0"), "`temperature` is 0.0"),
        ({"optimizer": "adamw_8bit"}, (), "--optimizer adamw_8bit: ImportError: You need to install `bitsandbytes`"),
        ({"optimizer": "adam"}, (), "adam is not a valid OptimizerNames"),
        ({"optimizer": "sgd", "adam_beta2": 0.9}, (), "--optimizer sgd does not take `adam_beta2`"),
        ({"optimizer": "adafactor", "adam_eps": 1e-9}, (), "does not take `adam_eps`"),
        ({"n_samples": 1}, (), "n_samples"),
        ({"flags": {"per_device_train_batch_size": 3}}, (), "8 rollouts, which 2 passes of 3 rows do not make"),
        ({"flags": {"gradient_accumulation_steps": 4}}, (), "does not divide the 2 passes"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(tmp_path: Path, trainer: dict[str, Any], extra: tuple[str], said: str):
    with pytest.raises(ConfigError) as refusal:
        settings(tmp_path, *extra, **trainer)
    assert said in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.fixture
def no_login(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("WANDB_API_KEY", "WANDB_MODE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))


@pytest.mark.usefixtures("no_login")
def test_tracker_that_is_not_installed_is_refused_if_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(orl_rollout.run_folder.tracking, "find_spec", lambda _module: None)
    asked: dict[str, Any]
    for asked in ({"wandb_project": "mine"}, {"tensorboard": True}):
        with pytest.raises(ConfigError, match="is not installed"):
            settings(tmp_path, **asked)
    monkeypatch.setenv("WANDB_API_KEY", "k" * 40)
    made = make_run(tmp_path, "m").config.trainer
    assert orl_rollout.run_folder.tracking.tracked_by(made).mode is None
    assert "wandb" in orl_rollout.run_folder.tracking.tracked_by(made).note


@pytest.mark.slow
@pytest.mark.usefixtures("no_login")
def test_asked_without_a_key_is_offline_in_the_folder(  # shows A15
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setenv("WANDB_SILENT", "true")
    with tracking(make_run(tmp_path, "m", wandb_project="mine")):
        assert wandb.run is not None
        assert (wandb.run.settings.mode, wandb.run.project, wandb.run.name) == ("offline", "mine", tmp_path.name)
    assert "WANDB_API_KEY" in caplog.text
    assert list(tmp_path.glob("wandb/offline-run-*"))


# Options with a field of GRPOConfig: a value, the field and what it has then.
FIELDS: dict[str, tuple[Any, str, Any]] = {
    "lr": (0.5, "learning_rate", 0.5),
    "lr_decay_style": ("cosine", "lr_scheduler_type", "cosine"),
    "weight_decay": (0.25, "weight_decay", 0.25),
    "adam_beta1": (0.5, "adam_beta1", 0.5),
    "adam_beta2": (0.5, "adam_beta2", 0.5),
    "adam_eps": (0.5, "adam_epsilon", 0.5),
    "advantage_estimator": ("gspo", "importance_sampling_level", "sequence"),
    "n_samples": (8, "num_generations", 8),
    "rollout_batch_size": (4, "generation_batch_size", 16),
    "num_rollout": (9, "max_steps", 18),
    "temperature": (0.5, "temperature", 0.5),
    "save_interval": (3, "save_steps", 6),
    "wandb_run": ("x", "run_name", "x"),
    "wandb_mode": ("offline", "report_to", ["wandb"]),
    "seed": (7, "seed", 7),
    "flags": ({"beta": 0.5}, "beta", 0.5),
    "optimizer": ("sgd", "optim", "sgd"),
}


@pytest.mark.parametrize("option", FIELDS)
def test_option_reaches_grpo_config(tmp_path: Path, option: str):
    value, field, expected = FIELDS[option]
    before = grpo_config(make_run(tmp_path, "m"), parameters=1)
    after = grpo_config(make_run(tmp_path, "m", **{option: value}), parameters=1)
    assert getattr(after, field) == expected
    assert getattr(before, field) != expected


def test_each_pattern_of_owned_flags_has_a_name():
    """A pattern without one is cut or outdated, and its flag would be accepted and ignored."""
    patterns = [pattern for names in GROUPS.values() for pattern in names.split("|")]
    assert [pattern for pattern in patterns if not any(re.fullmatch(pattern, name) for name in NAMES)] == []


@pytest.mark.parametrize("name", sorted(OWNED.keys() & NAMES))
def test_flag_that_orl_owns_is_refused(tmp_path: Path, name: str):
    run = structs.replace(make_run(tmp_path, "m"), extra=(f"--{name}=1",))
    with pytest.raises(ConfigError) as refusal:
        grpo_config(run, parameters=1)
    assert name in str(refusal.value)
