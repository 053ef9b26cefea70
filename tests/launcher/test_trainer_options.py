"""Options of `orl train`: one for every field of TrainerConfig; the configuration checks their values."""

from __future__ import annotations

from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from orl_core.config import TrainerConfig, load_config
from orl_core.config.fields import description_of
from orl_core.errors import ConfigError
from orl_launcher import cli, trainer_options
from orl_launcher.commands import doctor, rollout, train

from tests.kit.configs import LOCAL


def test_every_field_is_an_option_with_its_description() -> None:
    shown = " ".join(train.parser().format_help().split())
    for field in structs.fields(TrainerConfig):
        if field.name not in trainer_options.BESIDES:
            assert f"--{field.encode_name.replace('_', '-')} " in shown
            assert description_of(field.type) in shown
    assert "--engine TEXT" in shown
    assert "--lr N" in shown


def test_options_of_clusters_stand_apart() -> None:
    every, clusters = train.parser().format_help().split("options of slime and miles")
    assert "--lr" in every
    assert "--tp" not in every
    assert "--tp" in clusters


@pytest.mark.parametrize("command", [train, rollout, doctor])
def test_model_overrides_the_file(command: ModuleType) -> None:
    arguments = command.parser().parse(["--config", LOCAL, "--model", "7"])
    assert cli.config_of(arguments).trainer.model == "7"


def config_of(*argv: str) -> TrainerConfig:
    return cli.config_of(train.parser().parse(["--config", LOCAL, *argv])).trainer


def test_values_arrive_with_their_types() -> None:
    made = config_of("--lr", "3e-4", "--n-samples", "8", "--model", "7", "--wandb-mode", "offline", "--tp", "2")
    assert (made.lr, made.n_samples, made.model, made.wandb_mode, made.tp) == (3e-4, 8, "7", "offline", 2)


def test_a_switch_takes_no_value() -> None:
    assert config_of("--async").asynchronous is True
    assert config_of().asynchronous is False


def test_what_is_not_given_stays_as_the_file_says() -> None:
    assert config_of() == load_config(LOCAL).trainer


@pytest.mark.slow
@given(st.text(st.characters(exclude_categories=("Cs",))))
def test_any_text_stays_that_text(text: str) -> None:
    assert config_of(f"--wandb-run={text}").wandb_run == text


def test_set_has_the_last_word() -> None:
    arguments = train.parser().parse(["--config", LOCAL, "--lr", "1e-3", "--set", "trainer.lr=2e-3"])
    assert cli.config_of(arguments).trainer.lr == 2e-3


def test_what_stands_after_two_dashes_is_the_trainers() -> None:
    arguments = train.parser().parse(["trl", "--lr", "1e-3", "--", "--lr", "5", "--", "x y"])
    assert arguments.extra == ("--lr", "5", "--", "x y")
    assert vars(arguments)["trainer.lr"] == 1e-3


@pytest.mark.parametrize("command", [train, rollout, doctor])
def test_budgets_of_the_command_line_beat_the_file(command: ModuleType) -> None:
    budgets = ["--max-response-len", "16384", "--max-context-len", "65536"]
    made = cli.config_of(command.parser().parse(["--config", LOCAL, *budgets])).rollout
    assert (made.turn_tokens, made.context_tokens) == (16384, 65536)


def test_null_takes_a_number_of_the_file_out() -> None:
    assert config_of("--set", "trainer.tp=2").tp == 2
    assert config_of("--lr", "null").lr is None


@pytest.mark.parametrize("text", ["fast", "nan", "1e999", "0", "-1", "", "1:30"])
def test_what_is_no_learning_rate_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"\$\.trainer\.lr"):
        config_of(f"--lr={text}")


@pytest.mark.parametrize("backend", ["slime", "miles", "trl"])
def test_given_trainer_beats_the_files(backend: str) -> None:
    assert config_of(backend).backend == backend
    assert config_of().backend == "trl"


def test_a_choice_is_checked_at_once() -> None:
    with pytest.raises(cli.UsageError, match="offline"):
        train.parser().parse(["--wandb-mode", "never"])
