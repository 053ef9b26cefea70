"""The configuration of a command, resolved once: file, options, `--set`, trainer, date, checkpoints, and the name.

Every command reads the result. Only `playground.reachable` changes it later, because no address is known before. Users
name a checkpoint by a folder with weights, or by the folder of a run.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct, structs
from orl_core import ConfigError, RunConfig, TrainerConfig, load_config
from orl_core.config import RolloutConfig
from orl_core.config.agent import LOOPS_OWN
from orl_core.credentials import refuse_on_command_line
from orl_rollout.edge.secrets import Scrubber, refuse_in_words, refuse_repeats
from orl_rollout.logs import keep_out
from orl_rollout.run_folder.checkpoint import (
    WORDS,
    Checkpoint,
    checkpoint_in,
    conversion_of,
    default_output,
    is_absent,
)
from orl_rollout.run_folder.config_file import date_of, name_of, read_object
from orl_rollout.run_folder.contract import CHECKPOINT

from orl_launcher import cli, invocation, trainers

CONFIGURED = ("trainer.", "rollout.", "agent")  # how the options that override the configuration are named
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


def resolve(
    arguments: argparse.Namespace,
    run: str = "",
    *,
    bare: Mapping[str, object] | None = None,
    model: Literal["unread", "found", "needed"] = "found",
) -> tuple[RunConfig, Path, str | None]:
    """Resolve the configuration of `--config`, the options that override it, and `--set`: the last one wins.

    The folder of the run, which is not made yet, comes with it, and the checkpoint to continue as the user names it.

    `bare` replaces the file if a command needs none. `run` is the default name of the folder, {} the configured name;
    without it, no run begins. An "unread" `model` may be no checkpoint.
    """
    extra = arguments.extra
    config = _read(arguments, bare)
    keep_out(Scrubber.of(config))
    trainer, name, folder = config.trainer, config.openreward_run_name, trainers.RUNS / config.openreward_run_name
    if model == "needed" and not trainer.model:
        raise cli.UsageError("no model. Give --model, or set trainer.model in the file")
    if run:
        folder = trainers.new_run(arguments.name, run.format(name), planned=getattr(arguments, "dry_run", False))
        name = name_of(config, (run == "{}" and trainer.wandb_run) or folder.name)
    begun = {} if model == "unread" else paths_of(trainer)
    backend = trainer.backend or cli.backend_of()
    config = structs.replace(
        config,
        chat_template_date=date_of(config),
        openreward_run_name=name,
        trainer=structs.replace(trainer, backend=backend, **begun),
    )
    if backend in trainers.installed():
        config = trainers.find_trainer(backend).resolve(config, extra)
    refuse_repeats(config)
    refuse_on_command_line(extra)
    refuse_in_words(config, extra)
    return config, folder, trainer.load


def _read(arguments: argparse.Namespace, bare: Mapping[str, object] | None) -> RunConfig:
    file: str | None = arguments.config
    options = {path: value for path, value in vars(arguments).items() if path.startswith(CONFIGURED)}
    if "agent" in options:  # the file's budgets of the built-in loop are replaced with it
        options |= {f"rollout.{name}": getattr(RolloutConfig(), name) for name in LOOPS_OWN}
    if file and not Path(file).exists():
        raise ConfigError(f"{file}: no such file. Give --config; `{invocation()} init` writes a file")
    return load_config(file, arguments.overrides, options, bare)
