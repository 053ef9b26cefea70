"""Checkpoints on disk: their format, their step, and the note that orl writes next to the weights.

Whoever saves or converts writes the note. A folder without it is judged by its layout. The module knows no trainer and
reads no weights.
"""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import Struct, structs
from orl_core.errors import ConfigError
from orl_core.names import PATHS

from orl_rollout.run_folder.config_file import read_object, write_object

Format = Literal["hf", "megatron", "fsdp", "server"]
NOTE = "orl_checkpoint.json"
RUNS = "runs/"  # begins the path of a run's folder
# Next to Megatron's and FSDP's checkpoints: the number of the latest, or `release`.
CHECKPOINT_TRACKER = "latest_checkpointed_iteration.txt"
ITERATION, RELEASE = "iter_", "release"  # folders: of a step, and of weights that no step made
WORDS: dict[Format, str] = {
    "hf": "a Hugging Face checkpoint",
    "megatron": "a checkpoint of Megatron",
    "fsdp": "a checkpoint of FSDP",
    "server": "a checkpoint on its trainer's server",
}
SUFFIX: dict[Format, str] = {"hf": "_hf", "megatron": "_torch_dist", "fsdp": "_fsdp"}


class Checkpoint(Struct, frozen=True, kw_only=True):
    """The content of the note. Empty and None fields are not known.

    `step` counts the steps of training behind the weights. `trainer` wrote or converted them. `model` is the Hugging
    Face checkpoint that training began with, `tokenizer` the folder or the hub's name that has the tokenizer, `orl` the
    version of orl. `critic` says that the weights are PPO's critic, whose output is a value.
    """

    format: Format
    trainer: str = ""
    model: str = ""
    tokenizer: str = ""
    step: int | None = None
    orl: str = ""
    critic: bool = False


def is_absent(model: str) -> bool:
    """Return whether the name `model` is the path of a folder that is not there. A hub's name has two parts."""
    is_path = model.startswith(PATHS) or model.count("/") > 1
    return is_path and not Path(model).expanduser().is_dir()


def write_note(folder: Path, checkpoint: Checkpoint) -> None:
    """Write the note into the folder of a checkpoint."""
    write_object(folder / NOTE, structs.replace(checkpoint, orl=version("orl-rollout")))


def lasting_name(model: str) -> str:
    """Return the name of `model` that holds in every working folder: that of a folder becomes absolute."""
    folder = Path(model).expanduser()
    return str(folder.absolute()) if model and folder.is_dir() else model


def note_saved(folder: Path, trainer: str, model: str, *, critic: bool = False) -> None:
    """Write the note of the checkpoint that `trainer` saved into `folder`, of a training that began with `model`.

    Nothing is written if it saved none.
    """
    layout, model = _layout_of(folder), lasting_name(model)
    if layout is not None and layout.format != "hf":
        write_note(folder, structs.replace(layout, trainer=trainer, model=model, tokenizer=model, critic=critic))


def checkpoint_in(folder: Path) -> Checkpoint | None:
    """Return the checkpoint in `folder`, or None if there is none.

    The layout tells the format and the step, because a trainer may have saved again without orl. The note tells the
    rest. `folder` is the folder that a trainer saves to, or that of one step in it.

    Raises:
        ConfigError: the note cannot be read.
    """
    noted, layout = _read_note(folder), _layout_of(folder)
    if noted is None or layout is None:
        return noted or layout
    step = noted.step if layout.step is None else layout.step
    return structs.replace(noted, format=layout.format, step=step)


def trained_number(folder: Path) -> int | None:
    """Return the number of the latest checkpoint that training wrote to `folder`; None for a converted model or none.

    It is the trainer's own number: Megatron counts from 0, FSDP from 1.
    """
    tracker = folder / CHECKPOINT_TRACKER
    text = tracker.read_text(encoding="utf-8").strip() if tracker.is_file() else ""
    return int(text) if text.isdecimal() else None


def weights_in(folder: Path) -> Path:
    """Return the folder with the weights of the last step in `folder`: `folder` itself if it holds one step."""
    tracker = folder / CHECKPOINT_TRACKER
    return folder / _step_folder(tracker) if tracker.is_file() else folder


def default_output(source: Path, wanted: Format) -> Path:
    """Return the folder for `source` in another format: next to the folder that its trainer saves to."""
    saved = source.parent if (source.parent / CHECKPOINT_TRACKER).is_file() else source
    saved = saved if saved.name.strip(".") else saved.resolve()  # `.` has no name to go by
    return saved.with_name(f"{saved.name}{SUFFIX[wanted]}")


def conversion_of(source: Path | str, trainer: str = "", output: str = "") -> str:
    """Return the command that converts the checkpoint in `source` with the tool of `trainer`, to `output` if given."""
    written = output and f"--output {output}"
    return f"`{' '.join(filter(None, ('orl convert', trainer, str(source), written)))}`"


def _read_note(folder: Path) -> Checkpoint | None:
    path = folder / NOTE
    if not path.is_file():
        return None
    try:
        return msgspec.convert(read_object(path), Checkpoint)
    except msgspec.ValidationError as exc:
        raise ConfigError(f"{path}: {exc}. Remove the file: the format is then taken from the layout") from exc


def _layout_of(folder: Path) -> Checkpoint | None:
    if (folder / CHECKPOINT_TRACKER).is_file():
        return _saved(weights_in(folder))
    if (folder.parent / CHECKPOINT_TRACKER).is_file() and folder.name.startswith((ITERATION, RELEASE)):
        return _saved(folder)
    described: dict[str, Any] = read_object(folder / "config.json")
    return Checkpoint(format="hf") if described.keys() & {"model_type", "architectures"} else None


def _saved(weights: Path) -> Checkpoint:
    """Return the checkpoint of one step. FSDP has a folder for the model, and counts its steps from 1."""
    number = weights.name.removeprefix(ITERATION)
    counted = int(number) if number.isdecimal() else None
    if (weights / "model").is_dir():
        return Checkpoint(format="fsdp", step=counted)
    return Checkpoint(format="megatron", step=None if counted is None else counted + 1)  # named by the batch, from 0


def _step_folder(tracker: Path) -> str:
    step = tracker.read_text(encoding="utf-8").strip()
    return f"{ITERATION}{int(step):07d}" if step.isdecimal() else step
