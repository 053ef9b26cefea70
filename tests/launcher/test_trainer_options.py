"""Options of `orl train`: one for every field of `trainer` and of the sections of its trainer."""

from __future__ import annotations

from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from orl_cluster.launch.options import cluster_of
from orl_core.config import TrainerConfig, load_config
from orl_core.config.fields import description_of
from orl_core.errors import ConfigError
from orl_launcher import cli, options, trainers
from orl_launcher.commands import convert, doctor, rollout, train
from orl_trl.options import own_options

from tests.kit.configs import LOCAL

TRAINERS = ["miles", "slime", "trl"]


def help_of(*words: str) -> str:
    made = train.parser()
    made.prepare(words)
    return " ".join(made.format_help().split())


def test_every_shared_field_is_an_option_with_its_description() -> None:  # shows C2
    shown = help_of("--help")
    for field in structs.fields(TrainerConfig):
        if field.name not in options.NO_OPTIONS:
            assert f"--{field.encode_name.replace('_', '-')} " in shown
            assert description_of(field.type) in shown
    assert "--lr N" in shown


@pytest.mark.parametrize("trainer", TRAINERS)
def test_trainer_has_options_of_its_own_and_no_others(trainer: str) -> None:
    shown, bare = help_of(trainer), help_of("--help")
    assert f"orl train {trainer} --help" in bare
    for name in TRAINERS:
        for option in options.options_of(name):
            assert f"--{option.name} " not in bare
            assert (f"--{option.name} " in shown) == (option in options.options_of(trainer))


def test_options_keep_their_spelling() -> None:  # shows C5
    spelled = {option.name: option.path for name in TRAINERS for option in options.options_of(name)}
    assert spelled["slime-path"] == "trainer.slime.path"
    assert spelled["miles-path"] == "trainer.miles.path"
    assert spelled["async"] == "trainer.cluster.async"
    assert spelled["lora-rank"] == "trainer.trl.lora_rank"


@pytest.mark.parametrize(
    ("words", "owner"),
    [
        (["trl", "--tp", "2"], "slime"),
        (["slime", "--lora-rank", "2"], "trl"),
        (["slime", "--miles-path", "x"], "miles"),
        (["--async"], "slime"),
        (["--config", LOCAL, "--set", "trainer.backend=slime", "--engine", "auto"], "trl"),
    ],
)
def test_option_of_another_trainer_names_its_owner(words: list[str], owner: str) -> None:
    with pytest.raises(cli.UsageError, match=f"is an option of .*{owner}.*the trainer is"):
        train.parser().parse(words)


def test_trainer_is_that_of_the_command_line_or_the_file() -> None:
    parsed = train.parser().parse(["--name", "slime", "--lora-rank", "2", "trl"])
    assert (parsed.backend, vars(parsed)["trainer.trl.lora_rank"]) == ("trl", 2)
    parsed = train.parser().parse(["--config", LOCAL, "--set", "trainer.backend=miles", "--tp", "2"])
    assert vars(parsed)["trainer.cluster.tp"] == 2


@pytest.mark.parametrize(("name", "near"), [("slim", "did you mean slime"), ("verl", "miles, slime, tinker, trl")])
def test_unknown_trainer_is_refused_with_those_that_are_here(name: str, near: str) -> None:
    with pytest.raises(cli.UsageError, match=near):
        train.parser().parse([name])


def test_conversion_has_the_options_of_its_tools() -> None:
    parsed = convert.parser().parse(["slime", "folder", "--num-gpus", "2", "--slime-path", "x"])
    assert vars(parsed)["trainer.slime.path"] == "x"
    with pytest.raises(cli.UsageError, match="--tp"):
        convert.parser().parse(["slime", "folder", "--tp", "2"])


@pytest.mark.parametrize("command", [train, rollout, doctor])
def test_model_overrides_the_file(command: ModuleType) -> None:
    arguments = command.parser().parse(["--config", LOCAL, "--model", "7"])
    assert options.config_of(arguments).trainer.model == "7"


def config_of(*argv: str) -> TrainerConfig:
    return options.config_of(train.parser().parse(["--config", LOCAL, *argv])).trainer


def test_values_arrive_with_their_types() -> None:
    made = config_of("--lr", "3e-4", "--n-samples", "8", "--model", "7", "--wandb-mode", "offline", "--lora-rank", "2")
    assert (made.lr, made.n_samples, made.model, made.wandb_mode) == (3e-4, 8, "7", "offline")
    assert own_options(made).lora_rank == 2


def test_a_switch_takes_no_value() -> None:
    assert cluster_of(config_of("slime", "--async")).asynchronous is True
    assert cluster_of(config_of("slime")).asynchronous is False


def test_what_is_not_given_stays_as_the_file_says() -> None:
    assert config_of() == load_config(LOCAL).trainer


@pytest.mark.slow
@given(st.text(st.characters(exclude_categories=("Cs",))))
def test_any_text_stays_that_text(text: str) -> None:
    assert config_of(f"--wandb-run={text}").wandb_run == text


def test_set_has_the_last_word() -> None:
    arguments = train.parser().parse(["--config", LOCAL, "--lr", "1e-3", "--set", "trainer.lr=2e-3"])
    assert options.config_of(arguments).trainer.lr == 2e-3


def test_what_stands_after_two_dashes_is_the_trainers() -> None:
    arguments = train.parser().parse(["trl", "--lr", "1e-3", "--", "--lr", "5", "--", "x y"])
    assert arguments.extra == ("--lr", "5", "--", "x y")
    assert vars(arguments)["trainer.lr"] == 1e-3


@pytest.mark.parametrize("command", [train, rollout, doctor])
def test_budgets_of_the_command_line_beat_the_file(command: ModuleType) -> None:  # shows C3
    budgets = ["--max-response-len", "16384", "--max-context-len", "65536"]
    made = options.config_of(command.parser().parse(["--config", LOCAL, *budgets])).rollout
    assert (made.turn_tokens, made.context_tokens) == (16384, 65536)


def test_null_takes_a_number_of_the_file_out() -> None:
    assert own_options(config_of("--set", "trainer.trl.lora_rank=2")).lora_rank == 2
    assert config_of("--lr", "null").lr is None


@pytest.mark.parametrize("text", ["fast", "nan", "1e999", "0", "-1", "", "1:30"])
def test_what_is_no_learning_rate_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"\$\.trainer\.lr"):
        config_of(f"--lr={text}")


def test_wrong_option_of_a_trainer_is_refused_with_its_key() -> None:
    with pytest.raises(ConfigError, match=r"\$\.trainer\.trl\.lora_rank"):
        config_of("--lora-rank", "0")


def test_sections_that_nobody_reads_are_named() -> None:
    trainer = TrainerConfig(sections={"trl": {}, "cluser": {}}, flags={"slime": {}, "verl": {}})
    config = structs.replace(load_config(LOCAL), trainer=trainer)
    first, second = trainers.unread(config)
    assert "trainer.cluser" in first
    assert "cluster" in first
    assert "trainer.flags.verl" in second


@pytest.mark.parametrize("backend", TRAINERS)
def test_given_trainer_beats_the_files(backend: str) -> None:  # shows G1
    assert config_of(backend).backend == backend
    assert config_of().backend == "trl"


def test_file_without_trainer_gets_that_of_the_default_file() -> None:
    assert config_of("--set", "trainer.backend=null").backend == "trl"


def test_a_choice_is_checked_at_once() -> None:
    with pytest.raises(cli.UsageError, match="offline"):
        train.parser().parse(["--wandb-mode", "never"])
