"""The checkpoint of a run: its path on the server, and what a run that continues it must share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct
from orl_core.config import RunConfig
from orl_core.errors import ConfigError, OrlError, boundary
from orl_rollout.run_folder.checkpoint import Checkpoint, lasting_name, write_note
from orl_rollout.run_folder.config_file import write_object
from orl_rollout.training.resume import is_allowed

from orl_tinker.options import DEFAULTS, NAME, own_options

STATE = "orl_tinker.json"
SCHEME = "tinker:/"  # a path of the server: its second slash is lost if it was taken for a folder


class Saved(Struct, frozen=True, kw_only=True):
    """A checkpoint at `path` of the server, after `step` steps of a training that began with `model`."""

    path: str
    step: int = 0
    model: str = ""
    order: dict[str, Any] = {}


def order_of(config: RunConfig, tasks: Sequence[str]) -> dict[str, Any]:
    """Return the settings that a run over `tasks`, their keys, shares with the one that continues it."""
    trainer, own = config.trainer.with_defaults(DEFAULTS), own_options(config.trainer)
    shared = ("seed", "rollout_batch_size", "n_samples", "lr", "weight_decay", "adam_beta1", "adam_beta2", "adam_eps")
    return {
        **{name: getattr(trainer, name) for name in shared},
        "tasks": sha256("\n".join(tasks).encode()).hexdigest() if tasks else "",
        "lora_rank": own.lora_rank,
        "loss_fn": own.loss_fn,
    }


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


def check_order(config: RunConfig, saved: Saved | None, order: Mapping[str, Any], steps: int) -> None:
    """Refuse to continue `saved` in another way than its run, or for no step.

    Raises:
        ConfigError: a setting differs.
    """
    load = config.trainer.load
    for name, now in order.items():
        then = saved.order.get(name, now) if saved else now
        if now in ("", then) or is_allowed(config, "trainer", name):
            continue
        if name == "tasks":
            raise ConfigError(f"--load {load}: tasks.jsonl has changed since its run began. Give it the same tasks")
        raise ConfigError(f"--load {load}: its run has `{name}` {then}, and this one {now}. Set it as it was")
    if saved and saved.step >= steps:
        raise ConfigError(
            f"--load {load}: it has {saved.step} steps already. Set --num-rollout to more than {saved.step}"
        )


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
