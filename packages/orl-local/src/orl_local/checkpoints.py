"""Checkpoints that a later run continues: weights, optimizer, schedule, tokenizer, and what both runs must share.

A checkpoint is written under another name and renamed when it is whole. The newest is the run's `checkpoint`; those
before it are in `trainer`, by their steps.
"""

from __future__ import annotations

import shutil
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
from orl_core.config import RunConfig
from orl_core.errors import ConfigError, OrlError, boundary
from orl_core.task import Task
from orl_rollout.edge.files import replace
from orl_rollout.memory import GIB
from orl_rollout.run_folder.checkpoint import WORDS, Checkpoint, checkpoint_in, conversion_of, write_note
from orl_rollout.run_folder.config_file import read_object
from orl_rollout.training import resume

from orl_local.options import NAME
from orl_local.settings import Settings

STATE, ORDER = "training.pt", "orl_order.json"
# Settings that another run may have, or that the configurations of both runs tell.
FREE = {"algorithm", "steps", "temperature", "turn_tokens", "max_logprob_difference", "tokens", "recompute"}
EARLIER = "trainer"  # folder of the run that holds the checkpoints before the newest one


def order_of(config: RunConfig, settings: Settings, tasks: Sequence[Task]) -> dict[str, Any]:
    """Return the settings that a run over `tasks` shares with the one that continues it.

    `config` has no default left.
    """
    trainer, algorithm = config.trainer, settings.algorithm
    return {
        **resume.order_of(trainer, tasks),
        **{name: getattr(settings, name) for name in Settings.__struct_fields__ if name not in FREE},
        "advantage_estimator": trainer.advantage_estimator,
        "clip_low": algorithm.low,
        "clip_high": algorithm.cap or algorithm.high,
    }


def checkpoint_to_load(load: str | None) -> Checkpoint | None:
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


def check_settings(config: RunConfig, checkpoint: Checkpoint, order: Mapping[str, Any]) -> None:
    """Refuse to continue `checkpoint`, of `trainer.load`, with other settings than `order` says.

    Raises:
        ConfigError: one differs.
    """
    before = read_object(Path(config.trainer.load or "").expanduser() / ORDER)
    fixed = ("optimizer", "lora_rank")  # whose states are others
    resume.check_order(config, before, order, checkpoint.step or 0, fixed)


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
