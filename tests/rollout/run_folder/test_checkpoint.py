"""Checkpoints on disk: the note, the layouts of trainers, and the step that they hold."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

import msgspec
import pytest
from orl_core.errors import ConfigError
from orl_core.names import download_of
from orl_rollout.run_folder.checkpoint import (
    NOTE,
    Checkpoint,
    checkpoint_in,
    default_output,
    is_absent,
    lasting_name,
    note_saved,
    weights_in,
    write_note,
)

from tests.kit.saved import hugging_face, saved


@pytest.mark.parametrize(
    "model", ["models/Qwen3-4B", "playground/GuessNumber", "runs/one", "./a", "/a/b", "a/b/c", "a"]
)
def test_download_is_advised_for_names_of_a_hub_alone(model: str) -> None:
    assert download_of("Qwen/Qwen3-4B", "run ", "config.json") == "run `hf download Qwen/Qwen3-4B config.json`"
    assert download_of(model, "run ") == ""
    assert is_absent(model) == (model not in ("playground/GuessNumber", "a"))


@pytest.mark.parametrize("step", [1, 20])
def test_step_is_counted_from_1_for_every_layout(tmp_path: Path, step: int) -> None:
    """Megatron's folders are named by the trainer's batch, which counts from 0; FSDP's by the step."""
    for place, fsdp, number in ((tmp_path / "megatron", False, step - 1), (tmp_path / "fsdp", True, step)):
        folder = saved(place, number, fsdp=fsdp)
        found = checkpoint_in(folder)
        assert found == Checkpoint(format="fsdp" if fsdp else "megatron", step=step)
        assert weights_in(folder) == folder / f"iter_{number:07d}"
        assert checkpoint_in(weights_in(folder)) == found
        assert weights_in(weights_in(folder)) == weights_in(folder)


def test_converted_weights_have_the_step_of_their_note(tmp_path: Path) -> None:
    folder = saved(tmp_path / "converted", None)
    assert checkpoint_in(folder) == Checkpoint(format="megatron")
    write_note(folder, Checkpoint(format="megatron", step=7))
    found = checkpoint_in(folder)
    assert found is not None
    assert (found.step, found.orl) == (7, version("orl-rollout"))


def test_folder_without_weights_is_no_checkpoint(tmp_path: Path) -> None:
    assert checkpoint_in(tmp_path) is None
    assert checkpoint_in(tmp_path / "none") is None
    (tmp_path / "config.json").write_text('{"environments": {}}', encoding="utf-8")  # of a run, not of a model
    assert checkpoint_in(tmp_path) is None
    assert checkpoint_in(hugging_face(tmp_path / "model")) == Checkpoint(format="hf")


def test_layout_wins_over_an_old_note(tmp_path: Path) -> None:
    """A trainer may have saved again without orl."""
    folder = saved(tmp_path / "saved", 4)
    write_note(folder, Checkpoint(format="fsdp", trainer="miles", model="m", step=2))
    found = checkpoint_in(folder)
    assert found is not None
    assert (found.format, found.step, found.trainer, found.model) == ("megatron", 5, "miles", "m")


def test_note_of_a_trainer_tells_model_and_tokenizer(tmp_path: Path) -> None:
    folder = saved(tmp_path / "saved", 9)
    note_saved(folder, "slime", "/models/m", critic=True)
    tree = msgspec.json.decode((folder / NOTE).read_bytes())
    assert tree.pop("orl")
    expected = {"format": "megatron", "trainer": "slime", "model": "/models/m", "tokenizer": "/models/m", "step": 10}
    assert tree == {**expected, "critic": True}


def test_nothing_is_noted_of_a_run_that_saved_nothing(tmp_path: Path) -> None:
    note_saved(tmp_path, "slime", "/models/m")
    note_saved(tmp_path / "none", "slime", "/models/m")
    assert list(tmp_path.iterdir()) == []


def test_model_of_a_note_holds_in_every_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "models" / "m").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert lasting_name("models/m") == str(tmp_path / "models" / "m")
    assert (lasting_name("Org/Model"), lasting_name("")) == ("Org/Model", "")


def test_unreadable_note_is_refused(tmp_path: Path) -> None:
    folder = hugging_face(tmp_path / "model")
    (folder / NOTE).write_text('{"format": "gguf"}', encoding="utf-8")
    with pytest.raises(ConfigError, match=NOTE):
        checkpoint_in(folder)


def test_output_lies_beside_what_a_trainer_saves_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = saved(tmp_path / "saved", 3)
    assert default_output(folder, "hf") == default_output(weights_in(folder), "hf") == tmp_path / "saved_hf"
    assert default_output(tmp_path / "m", "megatron") == tmp_path / "m_torch_dist"
    monkeypatch.chdir(folder)
    assert default_output(Path(), "hf") == tmp_path / "saved_hf"
