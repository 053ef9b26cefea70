"""`orl convert slime`: the command line, and the tool's run in a second environment that has slime (a stand-in)."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from orl_launcher.main import main
from orl_rollout.run_folder.checkpoint import NOTE

from tests.kit.saved import hugging_face
from tests.slime.environment import STAND_IN, make_environment
from tests.two_pythons import planning
from tests.two_pythons.converting import SOURCES, assert_golden, folders, planned, refused

Capture = pytest.CaptureFixture[str]
MODEL = ["--model", "Qwen3-0.6B"]


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(make_environment(tmp_path_factory.mktemp("second") / "env"))


@pytest.fixture(autouse=True)
def working(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A checkpoint of each format, and none of the machine's own variables."""
    planning.alone(monkeypatch, tmp_path)
    folders(tmp_path)
    return tmp_path


@pytest.mark.parametrize(("source", "argv"), [("megatron", MODEL), ("hf", [])])
# shows A22 F20 G24
def test_command_is_shown_without_slime(capsys: Capture, working: Path, source: str, argv: list[str]) -> None:
    shown = planned(capsys, "slime", SOURCES[source], *argv).replace(str(working), "HERE")
    assert_golden("slime", f"{source}_without_slime", shown)


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (["megatron"], "no note tells its model"),
        (["megatron", "--model", "Qwen/Qwen3-0.6B"], "`hf download Qwen/Qwen3-0.6B --local-dir FOLDER`"),
        (["megatron", "--model", "megatron"], "no folder with a Hugging Face checkpoint"),
        (["megatron", *MODEL, "--num-gpus", "2"], "--num-gpus 2: only a conversion to Megatron uses it"),
        (["megatron", *MODEL, "--model-args", "x"], "--model-args x: only a conversion to Megatron uses it"),
        (["megatron", *MODEL, "--output", "fsdp"], "fsdp exists already"),
        (["megatron", *MODEL, "--", "--input-dir", "x"], "--input-dir is set by the folder to convert"),
        (["megatron", *MODEL, "--", "-f"], "-f: expected an option"),
        (["megatron", *MODEL, "--miles-path", "x"], "--miles-path is an option of miles"),
        (["Qwen3-0.6B", *MODEL], "Qwen3-0.6B is the model. Leave it out"),
        (["fsdp", *MODEL], "`orl convert miles fsdp`"),
    ],
)
def test_option_without_use_is_refused(capsys: Capture, argv: list[str], told: str) -> None:
    assert told in refused(capsys, "slime", *argv)


def test_other_format_of_megatron_is_refused(capsys: Capture, working: Path) -> None:
    (working / "megatron" / "iter_0000019" / "common.pt").unlink()
    assert "torch_dist format alone" in refused(capsys, "slime", "megatron", *MODEL)


def test_rows_of_the_vocabulary_are_those_of_the_model(capsys: Capture, working: Path) -> None:
    """A multimodal model has them in the configuration of its text part; an own option wins."""
    hugging_face(working / "nested", vocab_size=None, text_config={"vocab_size": 77})
    assert "--vocab-size 77" in planned(capsys, "slime", "megatron", "--model", "nested")
    words = planning.words_of(planned(capsys, "slime", "megatron", *MODEL, "--", "--vocab-size", "5"))
    assert words[-2:] == ["--vocab-size", "5"]
    assert "600" not in words


@pytest.mark.slow
def test_tool_reads_the_shape_and_judges_options(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch, python: str, working: Path
) -> None:
    shown = planned(capsys, "slime", "Qwen3-0.6B", "--python", python, "--num-gpus", "2")
    for real, stands_for in ((python, "PYTHON"), (str(STAND_IN), "SLIME"), (str(working), "HERE")):
        shown = shown.replace(real, stands_for)
    assert_golden("slime", "hf", shown)
    monkeypatch.setenv("STAND_IN_GPUS", "1")
    options = ["--python", python, "--", "--swigloo"]
    assert "did you mean --swiglu?" in refused(capsys, "slime", "Qwen3-0.6B", *options)


@pytest.mark.slow
def test_converted_folder_has_a_note(monkeypatch: pytest.MonkeyPatch, python: str, working: Path) -> None:
    monkeypatch.setenv("STAND_IN_GPUS", "1")
    assert main(["convert", "slime", "megatron", *MODEL, "--python", python]) == 0
    note = json.loads((working / "megatron_hf" / NOTE).read_text(encoding="utf-8"))
    assert (note["format"], note["trainer"], note["step"]) == ("hf", "slime", 20)
    assert (note["model"], note["tokenizer"]) == (str(working / "Qwen3-0.6B"), str(working / "megatron_hf"))
    assert (working / "megatron_hf.log").read_text(encoding="utf-8") == "converted\n"
    assert main(["convert", "slime", "megatron_hf", "--python", python, "--model-args", "qwen3-0.6B"]) == 0
    note = json.loads((working / "megatron_hf_torch_dist" / NOTE).read_text(encoding="utf-8"))
    assert (note["format"], note["step"]) == ("megatron", 20)
    assert note["model"] == note["tokenizer"] == str(working / "megatron_hf")


@pytest.mark.slow
def test_failed_conversion_leaves_its_log_alone(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch, python: str, working: Path
) -> None:
    monkeypatch.setenv("STAND_IN_ENDS", "memory")
    monkeypatch.setenv("HF_TOKEN", "orl-secret-token")
    assert main(["convert", "slime", "megatron", *MODEL, "--python", python]) == 1
    assert "MemoryError: no memory for [secret] (see" in capsys.readouterr().err
    assert not (working / "megatron_hf").exists()
    assert "orl-secret-token" not in (working / "megatron_hf.log").read_text(encoding="utf-8")


@pytest.mark.slow
def test_slime_without_the_tool_is_refused(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch, python: str, working: Path
) -> None:
    other = working / "other"
    shutil.copytree(STAND_IN, other, ignore=shutil.ignore_patterns("tools", "__pycache__"))
    monkeypatch.setenv("PYTHONPATH", str(other))
    assert "has no tools/convert_torch_dist_to_hf.py" in refused(
        capsys, "slime", "megatron", *MODEL, "--python", python
    )
