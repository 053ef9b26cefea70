"""`orl convert`, and checkpoints that are named by their run: which one it is, and which command makes it readable."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from orl_core.config import load_config
from orl_core.errors import ConfigError
from orl_launcher.commands import convert
from orl_launcher.configuration import paths_of
from orl_launcher.main import main
from orl_rollout.run_folder.checkpoint import Checkpoint, write_note
from orl_rollout.run_folder.contract import Conversion, Plan
from orl_slime.launch import TRAINER

from tests.kit.configs import LOCAL
from tests.kit.saved import hugging_face, saved

Capture = pytest.CaptureFixture[str]


class Converter:
    """An adapter that keeps what it is handed."""

    def __init__(self) -> None:
        self.handed: list[Conversion] = []
        self.sections = TRAINER.sections

    def convert(self, conversion: Conversion) -> None:
        self.handed.append(conversion)

    def plan_conversion(self, conversion: Conversion) -> Plan:
        self.handed.append(conversion)
        return Plan(command="tool --input", problems=("no GPU",), notes=("not checked",))


@pytest.fixture
def converter(monkeypatch: pytest.MonkeyPatch) -> Converter:
    made = Converter()
    monkeypatch.setattr(convert, "find_trainer", lambda _: made)
    return made


def run_folder(backend: str = "slime", **trainer: Any) -> Path:
    """A run's folder, whose trainer began with the model `origin`."""
    folder = Path("runs") / "one"
    folder.mkdir(parents=True)
    options = {"backend": backend, "model": "origin", **trainer}
    (folder / "config.json").write_text(json.dumps({"environments": {}, "trainer": options}), encoding="utf-8")
    return folder


def model_of(name: Path | str) -> str | None:
    return paths_of(load_config(LOCAL, [f"trainer.model={name}"]).trainer)["model"]


def test_run_names_its_hugging_face_checkpoint() -> None:
    folder = run_folder("local")
    assert model_of(hugging_face(folder / "checkpoint")) == str(folder / "checkpoint")
    assert model_of(folder) == str(folder / "checkpoint")


def test_run_to_continue_names_its_last_checkpoint() -> None:
    folder = run_folder("local")
    saved = str(hugging_face(folder / "checkpoint"))
    for load in (folder, saved):
        assert paths_of(load_config(LOCAL, [f"trainer.load={load}"]).trainer) == {"load": saved, "model": saved}
    assert paths_of(load_config(LOCAL, ["trainer.load=nowhere"]).trainer)["load"] == "nowhere"


@pytest.mark.parametrize("backend", ["slime", "miles"])
def test_run_to_continue_on_a_cluster_names_its_checkpoint(backend: str) -> None:
    folder = run_folder(backend)
    place = str(saved(folder / "checkpoint", 19, fsdp=backend == "miles"))
    for load in (folder, place):
        trainer = load_config(LOCAL, [f"trainer.load={load}", f"trainer.backend={backend}"]).trainer
        assert paths_of(trainer) == {"load": place, "model": trainer.model}


def test_run_to_continue_without_checkpoint_is_refused() -> None:
    with pytest.raises(ConfigError, match="no checkpoint"):
        paths_of(load_config(LOCAL, [f"trainer.load={run_folder()}", "trainer.backend=slime"]).trainer)


def test_critic_is_not_converted(capsys: Capture) -> None:
    critic = saved(Path("checkpoint_critic"), 19)
    write_note(critic, Checkpoint(format="megatron", trainer="slime", critic=True))
    assert main(["convert", str(critic)]) == 2
    assert "actor" in capsys.readouterr().err


def test_unfinished_run_names_what_it_saved_last() -> None:
    folder = run_folder("local")
    for step in (10, 4):
        write_note(hugging_face(folder / "trainer" / f"checkpoint-{2 * step}"), Checkpoint(format="hf", step=step))
    assert model_of(folder) == str(folder / "trainer" / "checkpoint-20")


def test_hub_name_and_playground_stay_as_they_are() -> None:
    assert model_of("Qwen/Qwen3-4B") == "Qwen/Qwen3-4B"
    assert paths_of(load_config(LOCAL).trainer)["model"] == load_config(LOCAL).trainer.model


def test_run_without_checkpoint_is_refused() -> None:
    with pytest.raises(ConfigError, match="no checkpoint"):
        model_of(run_folder())


@pytest.mark.parametrize(("backend", "fsdp", "what"), [("slime", False, "Megatron"), ("miles", True, "FSDP")])
def test_run_in_another_format_names_its_conversion(backend: str, fsdp: bool, what: str) -> None:
    folder = run_folder(backend)
    saved(folder / "checkpoint", 20 if fsdp else 19, fsdp=fsdp)
    with pytest.raises(ConfigError, match=f"{what} of step 20.*`orl convert {backend} {folder}`"):
        model_of(folder)


def test_run_names_converted_weights_of_its_last_step() -> None:
    folder = run_folder()
    saved(folder / "checkpoint", 19)
    converted = hugging_face(folder / "checkpoint_hf")
    write_note(converted, Checkpoint(format="hf", step=20))
    assert model_of(folder) == str(converted)
    write_note(converted, Checkpoint(format="hf", step=10))
    with pytest.raises(ConfigError, match="orl convert"):
        model_of(folder)


@pytest.mark.parametrize("command", [["rollout"], ["train", "local"], ["doctor"]])
def test_commands_refuse_a_model_in_another_format(capsys: Capture, command: list[str]) -> None:
    saved(Path("converted"), None)
    assert main([*command, "--config", LOCAL, "--model", "converted"]) == 1
    printed = capsys.readouterr()
    assert "`orl convert converted`" in " ".join((printed.out + printed.err).split())
    assert not Path("runs").exists()


def test_run_knows_trainer_and_model(converter: Converter) -> None:
    folder = run_folder("miles")
    saved(folder / "checkpoint", 20, fsdp=True)
    assert main(["convert", str(folder)]) == 0
    (handed,) = converter.handed
    assert handed.source == folder / "checkpoint"
    assert handed.checkpoint == Checkpoint(format="fsdp", trainer="miles", model="origin", step=20)
    assert handed.output == folder / "checkpoint_hf"


def test_options_reach_the_trainer(converter: Converter, capsys: Capture) -> None:
    hugging_face(Path("model"))
    given = {"cluster": {"num_gpus": 2, "model_args": "shape.sh"}}
    argv = ["convert", "slime", "--output", "out", "model", "--num-gpus", "2", "--model-args", "shape.sh"]
    assert main([*argv, "--python", "py", "--dry-run", "--", "--extra", "1"]) == 1
    (handed,) = converter.handed
    assert (handed.output, handed.python, handed.extra) == (Path("out"), "py", ("--extra", "1"))
    assert (handed.trainer.backend, handed.trainer.sections) == ("slime", given)
    shown = capsys.readouterr().out.splitlines()
    assert shown == ["tool --input", "# it would not start on this machine: no GPU", "# not checked"]


@pytest.mark.parametrize(
    ("argv", "code", "told"),
    [
        (["slime", "none"], 2, "none: no such folder"),
        (["slime", "."], 2, "no checkpoint here"),
        (["model"], 2, "convert TRAINER model"),
        (["slime", "model", "--num-gpus", "0"], 1, "num_gpus"),
        (["slime", "model", "--model-args", "https://me:secret@host/x"], 1, "model_args"),
        (["slime", "model", "--outpt", "x"], 2, "did you mean --output?"),
        (["local", "model"], 1, "local reads this checkpoint as it is"),
        (["local", "saved"], 1, "local has no tool"),
    ],
)
def test_what_cannot_be_converted_is_refused(capsys: Capture, argv: list[str], code: int, told: str) -> None:
    hugging_face(Path("model"))
    saved(Path("saved"), 3)
    assert main(["convert", *argv]) == code
    assert told in capsys.readouterr().err
