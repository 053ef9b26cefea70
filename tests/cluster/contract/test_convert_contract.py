"""`orl convert`: its command lines, and the tool's run in a second environment that has the trainer (a stand-in)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from orl_launcher.main import main
from orl_launcher.trainers import WOULD_NOT_START
from orl_rollout.run_folder.checkpoint import NOTE

from tests.kit.saved import hugging_face, saved
from tests.two_pythons.fixtures import Orl

MODEL = ["--model", "Qwen3-0.6B"]
COMMANDS = {"megatron": ["megatron", *MODEL], "fsdp": ["fsdp", *MODEL], "hf": ["Qwen3-0.6B"]}


class Convert(Orl):
    """`orl convert TRAINER` in the folder `working`."""

    def shown(self, *argv: str) -> str:
        """Return the output of a dry run. Its exit code tells whether the conversion would start."""
        code = main(["convert", self.trainer, "--dry-run", *argv])
        shown, error = self.capsys.readouterr()
        assert shown, error
        assert code == (f"# {WOULD_NOT_START}: " in shown)
        return shown

    def fault(self, *argv: str) -> str:
        """Return the one line with which a conversion is refused."""
        assert main(["convert", self.trainer, *argv]) != 0
        return self.capsys.readouterr().err.splitlines()[-1]

    def note_of(self, folder: str) -> dict[str, str]:
        return json.loads((self.working / folder / NOTE).read_text(encoding="utf-8"))


@pytest.fixture(scope="session", params=["slime"])
def trainer(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def convert(
    trainer: str, python: str, working: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Convert:
    """The command, in a folder with a checkpoint of each format, on a machine with one GPU."""
    hugging_face(working / "Qwen3-0.6B")
    saved(working / "megatron", 19)
    saved(working / "fsdp", 20, fsdp=True)
    monkeypatch.setenv("STAND_IN_GPUS", "1")
    return Convert(trainer, python, working, capsys)


BOTH = [("slime", "hf"), ("slime", "megatron"), ("miles", "hf"), ("miles", "megatron"), ("miles", "fsdp")]


@pytest.mark.parametrize(("trainer", "source"), BOTH, indirect=["trainer"])
def test_command_is_shown_without_the_trainer(convert: Convert, source: str) -> None:
    convert.assert_golden(f"convert_{source}_without_{convert.trainer}", convert.shown(*COMMANDS[source]))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("trainer", "source", "gpus", "argv"),
    [("slime", "hf", "0", ["--num-gpus", "2"]), ("miles", "hf", "1", []), ("miles", "fsdp", "1", [])],
    indirect=["trainer"],
)
def test_command_has_the_shape_of_the_model(
    convert: Convert, monkeypatch: pytest.MonkeyPatch, source: str, gpus: str, argv: list[str]
) -> None:
    monkeypatch.setenv("STAND_IN_GPUS", gpus)
    shown = convert.shown(*COMMANDS[source], "--python", convert.python, *argv)
    convert.assert_golden(f"convert_{source}", shown)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["megatron"], "no note tells its model"),
        (["megatron", "--model", "Qwen/Qwen3-0.6B"], "`hf download Qwen/Qwen3-0.6B --local-dir FOLDER`"),
        (["megatron", "--model", "megatron"], "--model megatron"),
        (["megatron", *MODEL, "--num-gpus", "2"], "--num-gpus 2"),
        (["megatron", *MODEL, "--model-args", "x"], "--model-args x"),
        (["megatron", *MODEL, "--output", "fsdp"], "fsdp exists"),
        (["megatron", *MODEL, "--", "--input-dir", "x"], "--input-dir"),
        (["megatron", *MODEL, "--", "-f"], "-f"),
        (["megatron", *MODEL, "--miles-path", "x"], "--miles-path"),
        (["Qwen3-0.6B", *MODEL], "Qwen3-0.6B is the model"),
    ],
)
def test_option_without_use_is_refused(convert: Convert, argv: list[str], message: str) -> None:
    assert message in convert.fault(*argv)


def test_rows_of_the_vocabulary_are_those_of_the_model(convert: Convert) -> None:
    """A multimodal model has them in the configuration of its text part; an own option wins."""
    hugging_face(convert.working / "nested", vocab_size=None, text_config={"vocab_size": 77})
    assert "--vocab-size 77" in convert.shown("megatron", "--model", "nested")
    shown = convert.shown("megatron", *MODEL, "--", "--vocab-size", "5")
    assert "--vocab-size 5" in shown
    assert "600" not in shown


@pytest.mark.slow
def test_converted_folder_has_a_note(convert: Convert) -> None:
    working, python = convert.working, convert.python
    assert main(["convert", "slime", "megatron", *MODEL, "--python", python]) == 0
    note = convert.note_of("megatron_hf")
    assert (note["format"], note["trainer"], note["step"]) == ("hf", "slime", 20)
    assert (note["model"], note["tokenizer"]) == (str(working / "Qwen3-0.6B"), str(working / "megatron_hf"))
    assert (working / "megatron_hf.log").read_text(encoding="utf-8") == "converted\n"
    assert main(["convert", "slime", "megatron_hf", "--python", python, "--model-args", "qwen3-0.6B"]) == 0
    note = convert.note_of("megatron_hf_torch_dist")
    assert (note["format"], note["step"]) == ("megatron", 20)
    assert note["model"] == note["tokenizer"] == str(working / "megatron_hf")


@pytest.mark.slow
def test_failed_conversion_leaves_its_log_alone(convert: Convert, monkeypatch: pytest.MonkeyPatch) -> None:
    log = convert.working / "megatron_hf.log"
    assert "--no-such-option" in convert.fault(
        "megatron", *MODEL, "--python", convert.python, "--", "--no-such-option", "1"
    )
    monkeypatch.setenv("STAND_IN_ENDS", "memory")
    monkeypatch.setenv("HF_TOKEN", "orl-secret-token")
    assert "MemoryError: no memory for [secret] (see" in convert.fault("megatron", *MODEL, "--python", convert.python)
    assert not (convert.working / "megatron_hf").exists()
    assert "orl-secret-token" not in log.read_text(encoding="utf-8")
