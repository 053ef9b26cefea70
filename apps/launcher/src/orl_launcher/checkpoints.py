"""Checkpoints by the names that users give them: a folder with weights, or the folder of a run. It knows no trainer."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct, structs
from orl_core.errors import ConfigError
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

if TYPE_CHECKING:
    from orl_core.config import RunConfig

PERIODIC = "trainer/checkpoint-*"  # what a trainer on this machine saves between its steps


class Found(Struct, frozen=True, kw_only=True):
    """A checkpoint and its folder. What no note tells is that of its run."""

    folder: Path
    checkpoint: Checkpoint


def with_model(config: RunConfig) -> RunConfig:
    """Return `config` with the Hugging Face checkpoint of its model: the last one where the model is a run's folder.

    The same goes for the checkpoint to resume from. One of Hugging Face is the model, too.

    Raises:
        ConfigError: it is in another format. The message has the command that converts it.
    """
    if config.trainer.load:
        config = _continued(config, Path(config.trainer.load).expanduser())
    named = config.trainer.model or ""
    folder = Path(named).expanduser()
    found = last_in(folder) if named and folder.is_dir() else None
    if found is None or found.folder == folder:
        if found and found.checkpoint.format != "hf":
            raise ConfigError(_unreadable(named, found, folder))
        return config
    if found.checkpoint.format != "hf":
        converted = default_output(found.folder, "hf")
        made = checkpoint_in(converted)
        if made is None or made.format != "hf" or made.step != found.checkpoint.step:
            raise ConfigError(_unreadable(named, found, folder))
        found = Found(folder=converted, checkpoint=made)
    return structs.replace(config, trainer=structs.replace(config.trainer, model=str(found.folder)))


def refuse_missing(config: RunConfig) -> None:
    """Refuse a model whose name is the path of a folder that is not there: a hub would be asked for it.

    Raises:
        ConfigError: it is.
    """
    model = config.trainer.model or ""
    if is_absent(model) and not config.trainer.load:
        raise ConfigError(
            f"--model {model}: no such folder. Give the folder of a run or of a checkpoint, or a hub's name"
        )


def _continued(config: RunConfig, folder: Path) -> RunConfig:
    """Return `config` with the checkpoint to continue as `load`. The trainer judges what it finds."""
    found = last_in(folder) if folder.is_dir() else None
    place = str(found.folder if found else folder)
    model = place if found and found.checkpoint.format == "hf" else config.trainer.model
    return structs.replace(config, trainer=structs.replace(config.trainer, load=place, model=model))


def last_in(folder: Path) -> Found | None:
    """Return the last checkpoint of the run in `folder`, or the checkpoint in `folder`; None if there is neither.

    Raises:
        ConfigError: the run has no checkpoint.
    """
    described: dict[str, Any] = read_object(folder / "config.json")
    if "environments" not in described:
        found = checkpoint_in(folder)
        return Found(folder=folder, checkpoint=_known(found, folder.parent)) if found else None
    saved = folder / CHECKPOINT
    saved = saved.readlink() if saved.is_symlink() else saved
    between = [(place, found) for place in folder.glob(PERIODIC) if (found := checkpoint_in(place))]
    between.sort(key=lambda one: one[1].step or 0)
    at_end = checkpoint_in(saved)
    if at_end is None and not between:
        raise ConfigError(f"{folder}: the run has no checkpoint in {saved}. Name another folder")
    place, found = between[-1] if at_end is None else (saved, at_end)
    return Found(folder=place, checkpoint=_known(found, folder))


def _known(checkpoint: Checkpoint, run: Path) -> Checkpoint:
    """Return `checkpoint` with the trainer and the model of its `run`, if no note tells them."""
    options: dict[str, Any] = read_object(run / "config.json").get("trainer") or {}
    if checkpoint.trainer or "backend" not in options:
        return checkpoint
    return structs.replace(checkpoint, trainer=options["backend"], model=str(options.get("model") or ""))


def _unreadable(named: str, found: Found, folder: Path) -> str:
    step = "" if found.checkpoint.step is None else f" of step {found.checkpoint.step}"
    words = f"{WORDS[found.checkpoint.format]}{step}"
    what = words if found.folder == folder else f"its last checkpoint, {found.folder}, is {words}"
    run = conversion_of(named, found.checkpoint.trainer)
    result = "then give this again" if found.folder != folder else "and name the result"
    return f"--model {named}: {what}, which only its trainer reads. Run {run}, {result}"
