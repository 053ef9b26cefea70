"""Checkpoints by the names that users give them: a folder with weights, or the folder of a run. It knows no trainer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from msgspec import Struct, structs
from orl_core import ConfigError, RunConfig, TrainerConfig
from orl_rollout.run_folder.checkpoint import (
    WORDS,
    Checkpoint,
    checkpoint_in,
    conversion_of,
    default_output,
    is_absent,
)
from orl_rollout.run_folder.config_file import read_object
from orl_rollout.run_folder.contract import CHECKPOINT

PERIODIC = "trainer/checkpoint-*"  # what a trainer on this machine saves between its steps


class Found(Struct, frozen=True, kw_only=True):
    """A checkpoint and its folder. What no note tells is that of its run."""

    folder: Path
    checkpoint: Checkpoint


def paths_of(trainer: TrainerConfig) -> dict[str, str | None]:
    """Return `load` and `model` of a trainer as folders: of a run's folder, its last checkpoint.

    A checkpoint of Hugging Face to resume from is the model, too. The trainer judges another one.
    """
    load, model = trainer.load, trainer.model
    if load:
        folder, match = _looked_at(load)
        load = str(match.folder if match else folder)
        model = load if match and match.checkpoint.format == "hf" else model
    if not model:
        return {"load": load, "model": model}
    folder, match = _looked_at(model)
    if match and match.checkpoint.format != "hf":
        converted = default_output(match.folder, "hf")
        result = None if match.folder == folder else checkpoint_in(converted)
        if result is None or result.format != "hf" or result.step != match.checkpoint.step:
            raise ConfigError(_unreadable(model, match, folder))
        match = Found(folder=converted, checkpoint=result)
    return {"load": load, "model": str(match.folder) if match and match.folder != folder else model}


def _looked_at(place: str) -> tuple[Path, Found | None]:
    folder = Path(place).expanduser()
    return folder, last_in(folder) if folder.is_dir() else None


def refuse_missing(config: RunConfig) -> None:
    """Refuse a model whose name is the path of a folder that is not there: a hub would be asked for it."""
    model = config.trainer.model or ""
    if is_absent(model) and not config.trainer.load:
        raise ConfigError(
            f"--model {model}: no such folder. Give the folder of a run or of a checkpoint, or a hub's name"
        )


def last_in(folder: Path) -> Found | None:
    """Return the last checkpoint of the run in `folder`, or the checkpoint in `folder`; None if there is neither."""
    described: dict[str, Any] = read_object(folder / "config.json")
    if "environments" not in described:
        match = checkpoint_in(folder)
        return Found(folder=folder, checkpoint=_known(match, folder.parent)) if match else None
    saved = folder / CHECKPOINT
    saved = saved.readlink() if saved.is_symlink() else saved
    between = [(place, match) for place in folder.glob(PERIODIC) if (match := checkpoint_in(place))]
    between.sort(key=lambda one: one[1].step or 0)
    at_end = checkpoint_in(saved)
    if at_end is None and not between:
        raise ConfigError(f"{folder}: the run has no checkpoint in {saved}. Name another folder")
    place, match = between[-1] if at_end is None else (saved, at_end)
    return Found(folder=place, checkpoint=_known(match, folder))


def _known(checkpoint: Checkpoint, run: Path) -> Checkpoint:
    """Return `checkpoint` with the trainer and the model of its `run`, if no note tells them."""
    options: dict[str, Any] = read_object(run / "config.json").get("trainer") or {}
    if checkpoint.trainer or "backend" not in options:
        return checkpoint
    return structs.replace(checkpoint, trainer=options["backend"], model=str(options.get("model") or ""))


def _unreadable(named: str, match: Found, folder: Path) -> str:
    step = "" if match.checkpoint.step is None else f" of step {match.checkpoint.step}"
    words = f"{WORDS[match.checkpoint.format]}{step}"
    what = words if match.folder == folder else f"its last checkpoint, {match.folder}, is {words}"
    run = conversion_of(named, match.checkpoint.trainer)
    result = "then give this again" if match.folder != folder else "and name the result"
    return f"--model {named}: {what}, which only its trainer reads. Run {run}, {result}"
