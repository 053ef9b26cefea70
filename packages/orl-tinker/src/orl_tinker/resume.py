"""The checkpoint of a run: its path on the server, and what a run that continues it must share."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct
from orl_core.config import RunConfig
from orl_core.errors import ConfigError, OrlError, boundary
from orl_core.task import Task
from orl_rollout.run_folder.checkpoint import Checkpoint, lasting_name, write_note
from orl_rollout.run_folder.config_file import write_object
from orl_rollout.training import resume

from orl_tinker.options import NAME, own_options

STATE = "orl_tinker.json"
SCHEME = "tinker:/"  # a path of the server: its second slash is lost if it was taken for a folder


class Saved(Struct, frozen=True, kw_only=True):
    """A checkpoint at `path` of the server, after `step` steps of a training that began with `model`."""

    path: str
    step: int = 0
    model: str = ""
    order: dict[str, Any] = {}


def order_of(config: RunConfig, tasks: Sequence[Task]) -> dict[str, Any]:
    """Return the settings that a run over `tasks` shares with the one that continues it.

    `config` has no default left.
    """
    trainer, own = config.trainer, own_options(config.trainer)
    optimizer = {
        name: getattr(trainer, name) for name in ("lr", "weight_decay", "adam_beta1", "adam_beta2", "adam_eps")
    }
    return {**resume.order_of(trainer, tasks), **optimizer, "lora_rank": own.lora_rank, "loss_fn": own.loss_fn}


def saved_in(config: RunConfig) -> Saved | None:
    """Return the checkpoint that `trainer.load` names; None if a run begins anew.

    Raises:
        ConfigError: there is none of this trainer.
    """
    load = config.trainer.load
    if load is None:
        return None
    if load.startswith(SCHEME):
        return Saved(path=f"{NAME}://{load.removeprefix(SCHEME).lstrip('/')}", model=config.trainer.model or "")
    file = Path(load).expanduser() / STATE
    if not file.is_file():
        raise ConfigError(f"--load {load}: no checkpoint of {NAME} is there. Give the folder of such a run")
    with boundary(ConfigError, f"reading {file}"):
        return msgspec.json.decode(file.read_bytes(), type=Saved)


def write_checkpoint(folder: Path, saved: Saved) -> None:
    """Write the checkpoint into `folder`. It is whole at each moment.

    Raises:
        OrlError: it cannot be written.
    """
    model = lasting_name(saved.model)
    with boundary(OrlError, f"writing {folder}"):
        folder.mkdir(exist_ok=True)
        write_object(folder / STATE, saved)
        write_note(folder, Checkpoint(format="server", trainer=NAME, model=model, tokenizer=model, step=saved.step))
