"""Options of `orl train`: one for every field of `trainer` and of the sections of its trainer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from orl_cluster.launch.options import cluster_of
from orl_core.config import TrainerConfig, load_config
from orl_core.config.fields import description_of
from orl_core.errors import ConfigError
from orl_launcher import cli, trainers
from orl_launcher.cli import Parser
from orl_launcher.configuration import resolve
from orl_local.options import own_options

from tests.kit.configs import LOCAL

TRAINERS = ["local", "miles", "slime"]


def help_of(*words: str) -> str:
    return " ".join(Parser("train", words).format_help().split())


def test_every_shared_field_is_an_option_with_its_description() -> None:
    shown = help_of("--help")
    for field in structs.fields(TrainerConfig):
        if field.name not in trainers.NO_OPTIONS:
            assert f"--{field.encode_name.replace('_', '-')} " in shown
            assert description_of(field.type) in shown
    assert "--lr N" in shown


@pytest.mark.parametrize("trainer", TRAINERS)
def test_trainer_has_options_of_its_own_and_no_others(trainer: str) -> None:
    shown, bare = help_of(trainer), help_of("--help")
    own = {option.name for option in trainers.options_of(trainer)}
    assert f"orl train {trainer} --help" in bare
    for name in TRAINERS:
        for option in trainers.options_of(name):
            assert f"--{option.name} " not in bare
            assert (f"--{option.name} " in shown) == (option.name in own)


@pytest.mark.parametrize("words", [["local", "--tp", "2"], ["--lora-rank", "2", "local"], ["--lr", "1e-3"]])
def test_trainer_comes_first(words: list[str]) -> None:
    with pytest.raises(cli.UsageError, match=r"trainer comes first|TRAINER"):
        Parser("train", words).parse()


@pytest.mark.parametrize(
    ("name", "near"), [("slim", "did you mean slime"), ("verl", "local, miles, slime, tinker, trl")]
)
def test_unknown_trainer_is_refused_with_those_that_are_here(name: str, near: str) -> None:
    with pytest.raises(cli.UsageError, match=near):
        Parser("train", [name]).parse()


def test_conversion_has_the_options_of_its_tools() -> None:
    parsed = Parser("convert", ["slime", "folder", "--num-gpus", "2", "--slime-path", "x"]).parse()
    assert vars(parsed)["trainer.slime.path"] == "x"
    with pytest.raises(cli.UsageError, match="--tp"):
        Parser("convert", ["slime", "folder", "--tp", "2"]).parse()


def config_of(*argv: str) -> TrainerConfig:
    words = argv if argv[:1] and argv[0] in TRAINERS else ("local", *argv)
    return resolve(Parser("train", [*words, "--config", LOCAL]).parse())[0].trainer


@pytest.mark.parametrize(
    ("words", "value_of", "value"),
    [
        (["--lr", "3e-4"], lambda made: made.lr, 3e-4),
        (["--model", "7"], lambda made: made.model, "7"),
        (["--wandb-mode", "offline"], lambda made: made.wandb_mode, "offline"),
        (["--lora-rank", "2"], lambda made: own_options(made).lora_rank, 2),
        (["slime", "--async"], lambda made: cluster_of(made).asynchronous, True),
        (["--lr", "1e-3", "--set", "trainer.lr=2e-3"], lambda made: made.lr, 2e-3),  # it has the last word
        (["--lr", "null"], lambda made: made.lr, None),
        *(([name], lambda made: made.backend, name) for name in TRAINERS),
        ([], lambda made: made, load_config(LOCAL).trainer),
    ],
)
def test_value_of_the_command_line(words: list[str], value_of: Callable[[TrainerConfig], Any], value: Any) -> None:
    assert value_of(config_of(*words)) == value


@pytest.mark.slow
@given(st.text(st.characters(exclude_categories=("Cs",))).filter(lambda text: text != "--"))
def test_any_text_stays_that_text(text: str) -> None:
    """But two dashes, which the parser of Python 3.11 takes for the end of the options."""
    assert config_of(f"--wandb-run={text}").wandb_run == text


def test_what_stands_after_two_dashes_is_the_trainers() -> None:
    arguments = Parser("train", ["local", "--lr", "1e-3", "--", "--lr", "5", "--", "x y"]).parse()
    assert arguments.extra == ("--lr", "5", "--", "x y")
    assert vars(arguments)["trainer.lr"] == 1e-3


@pytest.mark.parametrize("command", ["train", "rollout", "doctor"])
def test_model_and_budgets_beat_the_file(command: str) -> None:
    words = ["--model", "7", "--max-response-len", "16384", "--max-context-len", "65536"]
    trainer = ["local"] if command == "train" else []
    made = resolve(Parser(command, [*trainer, "--config", LOCAL, *words]).parse())[0]
    assert (made.trainer.model, made.rollout.turn_tokens, made.rollout.context_tokens) == ("7", 16384, 65536)


@pytest.mark.parametrize("text", ["fast", "nan", "1e999", "0", ""])
def test_what_is_no_learning_rate_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"\$\.trainer\.lr"):
        config_of(f"--lr={text}")
    with pytest.raises(ConfigError, match=r"\$\.trainer\.local\.lora_rank"):
        config_of("--lora-rank", "0")


def test_sections_that_nobody_reads_are_named() -> None:
    trainer = TrainerConfig(sections={"trl": {}, "cluser": {}}, flags={"slime": {}, "verl": {}})
    config = structs.replace(load_config(LOCAL), trainer=trainer)
    first, second = trainers.unread(config)
    assert "trainer.cluser" in first
    assert "cluster" in first
    assert "trainer.flags.verl" in second
