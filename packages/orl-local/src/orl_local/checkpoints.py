"""Checkpoints that a later run continues: weights, optimizer, schedule, tokenizer, and what both runs must share.

A checkpoint is written under another name and renamed when it is whole. The newest is the run's `checkpoint`; those
before it are in `trainer`, by their steps.
"""

from __future__ import annotations

import shutil
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct
from orl_core.config import RunConfig
from orl_core.errors import ConfigError, OrlError, boundary
from orl_rollout.edge.files import replace
from orl_rollout.memory.estimate import GIB
from orl_rollout.run_folder.checkpoint import WORDS, Checkpoint, checkpoint_in, conversion_of, write_note
from orl_rollout.run_folder.config_file import read_object
from orl_rollout.training.resume import is_allowed

from orl_local.options import DEFAULTS, NAME
from orl_local.settings import Settings

STATE, ORDER = "training.pt", "orl_order.json"
EARLIER = "trainer"  # folder of the run that holds the checkpoints before the newest one


class Start(Struct, frozen=True, kw_only=True):
    """The checkpoint that a run continues, after `step` steps. `model` is the one that its training began with."""

    folder: Path
    step: int
    model: str


def order_of(config: RunConfig, settings: Settings, tasks: Sequence[str]) -> dict[str, Any]:
    """Return the settings that a run over `tasks`, their keys, shares with the one that continues it.

    `tasks` is a digest of their keys; "" is not known.
    """
    trainer = config.trainer.with_defaults(DEFAULTS)
    return {
        "seed": settings.seed,
        "rollout_batch_size": trainer.rollout_batch_size,
        "n_samples": trainer.n_samples,
        "tasks": sha256("\n".join(tasks).encode()).hexdigest() if tasks else "",
        "advantage_estimator": trainer.advantage_estimator,
        "clip_low": settings.algorithm.low,
        "clip_high": settings.algorithm.cap or settings.algorithm.high,
        "updates": settings.updates,
        "optimizer": settings.optimizer,
        "lr": settings.lr,
        "lr_decay_style": settings.decay,
        "weight_decay": settings.weight_decay,
        "adam_beta1": settings.betas[0],
        "adam_beta2": settings.betas[1],
        "adam_eps": settings.eps,
        "warmup": settings.warmup,
        "max_grad_norm": settings.max_grad_norm,
        "kl_coef": settings.kl_coef,
        "correction": settings.correction,
        "correction_cap": settings.correction_cap,
        "lora_rank": settings.lora_rank,
    }


def check_start(load: str | None) -> Checkpoint | None:
    """Return the checkpoint in the folder `load`; None if a run begins anew.

    Raises:
        ConfigError: there is none of this trainer's, or it has no state to continue from.
    """
    if load is None:
        return None
    folder = Path(load).expanduser()
    checkpoint = checkpoint_in(folder)
    if checkpoint is None:
        raise ConfigError(f"--load {load}: no checkpoint is there. Give the folder of a run or of a checkpoint")
    if checkpoint.format != "hf":
        command = f"Run {conversion_of(load, checkpoint.trainer)}, and give --model the result"
        raise ConfigError(f"--load {load}: {WORDS[checkpoint.format]}, which local does not read. {command}")
    missing = [name for name in (STATE, ORDER) if not (folder / name).is_file()]
    if missing:
        raise ConfigError(
            f"--load {load}: {', '.join(missing)} not found, so no run continues it. Give it to --model: a new run "
            "begins with its weights"
        )
    return checkpoint


def start_of(config: RunConfig, order: Mapping[str, Any]) -> Start | None:
    """Return where a run begins that continues the checkpoint in `trainer.load`; None if it begins anew.

    Raises:
        ConfigError: as `check_start`, or a setting would continue it differently.
    """
    load = config.trainer.load
    checkpoint = check_start(load)
    if checkpoint is None:
        return None
    folder = Path(load or "").expanduser()
    before = read_object(folder / ORDER)
    for name, now in order.items():
        if now in ("", then := before.get(name, now)):
            continue
        fixed = name in ("optimizer", "lora_rank")  # whose states are others
        if not fixed and (is_allowed(config, "trainer", NAME, name) or is_allowed(config, "trainer", name)):
            continue
        if name == "tasks":
            raise ConfigError(f"--load {load}: tasks.jsonl has changed since its run began. Give it the same tasks")
        advice = "" if fixed else f", or give --allow-changes {name}"
        raise ConfigError(f"--load {load}: its run has `{name}` {then}, and this one {now}. Set it as it was{advice}")
    step, steps = checkpoint.step or 0, config.trainer.with_defaults(DEFAULTS).num_rollout or 0
    if step >= steps:
        raise ConfigError(f"--load {load}: it has {step} steps already. Set --num-rollout to more than {step}")
    return Start(folder=folder, step=step, model=checkpoint.model)


@contextmanager
def whole(folder: Path, kept: int) -> Generator[Path]:
    """Let the block write into a new folder, which takes the place of `folder`. `kept` checkpoints stay in all.

    Raises:
        OrlError: the block fails. The error says how much disk was free, because torch does not name a full disk.
    """
    fresh = folder.with_name(f"{folder.name}.unfinished")
    shutil.rmtree(fresh, ignore_errors=True)
    try:
        with boundary(OrlError, f"saving a checkpoint in {fresh.parent}"):
            fresh.mkdir(parents=True)
            yield fresh
            _set_aside(folder)
            fresh.rename(folder)
            saved = sorted((folder.parent / EARLIER).glob("checkpoint-*"), key=lambda one: int(one.name[11:]))
            for old in saved[: max(0, len(saved) - (kept - 1))]:
                shutil.rmtree(old, ignore_errors=True)
    except OrlError as fault:
        free = shutil.disk_usage(fresh.parent).free / GIB
        line = str(fault).splitlines()[0]
        advice = "If that is too little, make room. --load continues from the last whole checkpoint"
        raise OrlError(f"{line}; {free:.2f} GiB of this disk are free. {advice}") from fault
    finally:
        shutil.rmtree(fresh, ignore_errors=True)  # it holds disk


def _set_aside(folder: Path) -> None:
    """Move the checkpoint in `folder` to those before it."""
    if folder.exists():
        before = checkpoint_in(folder)
        place = folder.parent / EARLIER / f"checkpoint-{before.step if before else 0}"
        shutil.rmtree(place, ignore_errors=True)
        place.parent.mkdir(exist_ok=True)
        folder.rename(place)


def note(fresh: Path, folder: Path, model: str, order: Mapping[str, Any], step: int) -> None:
    """Write the notes of the checkpoint in `fresh`, which is going to be `folder`, after `step` steps."""
    write_note(fresh, Checkpoint(format="hf", trainer=NAME, model=model, tokenizer=str(folder.absolute()), step=step))
    replace(fresh / ORDER, msgspec.json.encode(order))
