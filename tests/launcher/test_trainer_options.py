"""Options of `orl train`: every field of TrainerConfig, each value as text until the configuration checks it."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from orl_core.config import TrainerConfig, load_config
from orl_launcher import cli, trainer_options
from orl_launcher.commands import train

from tests.launcher.test_main import LOCAL


def test_every_field_is_an_option_and_has_a_meaning() -> None:
    fields = {field.encode_name for field in msgspec.structs.fields(TrainerConfig)}
    assert set(trainer_options.MEANINGS) == fields - set(trainer_options.BESIDES)
    shown = train.parser().format_help()
    assert all(f"--{name.replace('_', '-')}" in shown for name in trainer_options.MEANINGS)


def config_of(*argv: str) -> TrainerConfig:
    arguments = train.parser().parse(argv)
    return load_config(LOCAL, trainer_options.overrides_of(arguments)).trainer


def test_values_arrive_with_their_types() -> None:
    made = config_of("--lr", "3e-4", "--n-samples", "8", "--model", "7", "--wandb-mode", "offline", "--tp", "2")
    assert (made.lr, made.n_samples, made.model, made.wandb_mode, made.tp) == (3e-4, 8, "7", "offline", 2)


def test_a_switch_takes_no_value() -> None:
    assert config_of("--async").asynchronous is True
    assert config_of().asynchronous is False


def test_what_is_not_given_stays_as_the_file_says() -> None:
    assert config_of() == load_config(LOCAL).trainer


@given(st.text(st.characters(exclude_categories=("Cs",))))
def test_any_text_stays_that_text(text: str) -> None:
    assert config_of(f"--wandb-run={text}").wandb_run == text


def test_set_has_the_last_word() -> None:
    arguments = train.parser().parse(["--config", LOCAL, "--lr", "1e-3", "--set", "trainer.lr=2e-3"])
    assert cli.config_of(arguments, trainer_options.overrides_of(arguments)).trainer.lr == 2e-3


def test_what_stands_after_two_dashes_is_the_trainers() -> None:
    arguments = train.parser().parse(["trl", "--lr", "1e-3", "--", "--lr", "5", "--", "x y"])
    assert arguments.extra == ("--lr", "5", "--", "x y")
    assert arguments.lr == "1e-3"


def test_a_choice_is_checked_at_once() -> None:
    with pytest.raises(cli.UsageError, match="offline"):
        train.parser().parse(["--wandb-mode", "never"])
