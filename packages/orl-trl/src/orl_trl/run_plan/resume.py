"""The checkpoint that a run continues, refused if the run would continue in another way than the one that wrote it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

from msgspec import Struct
from orl_core.config import RunConfig
from orl_core.errors import ConfigError
from orl_rollout.run_folder.checkpoint import WORDS, Checkpoint, checkpoint_in, conversion_of
from orl_rollout.run_folder.config_file import read_object
from orl_rollout.training.resume import is_allowed
from trl.trainer.grpo_config import GRPOConfig

from orl_trl.run_plan.settings import optimizer_of, updates_per_step

STATE = "trainer_state.json"
RANDOM = "rng_state.pth"
STATES = (STATE, "optimizer.pt", "scheduler.pt", RANDOM)
ORDER = "orl_order.json"


class Start(Struct, frozen=True, kw_only=True):
    """The checkpoint that a run continues, after `step` steps. `model` is the one that its training began with."""

    folder: Path
    step: int
    model: str


def order_of(settings: GRPOConfig, tasks: Sequence[str], lora_rank: int | None) -> dict[str, Any]:
    """Return the settings that a run over `tasks`, their keys, shares with the one that continues it.

    The order of the tasks depends on the first five. `tasks` is a digest of their keys; "" is not known.
    """
    members = settings.num_generations or 1
    return {
        "seed": settings.seed,
        "rollout_batch_size": (settings.generation_batch_size or 0) // members,
        "n_samples": members,
        "updates": updates_per_step(settings),
        "tasks": sha256("\n".join(tasks).encode()).hexdigest() if tasks else "",
        "optimizer": optimizer_of(settings),
        "lr": settings.learning_rate,
        "weight_decay": settings.weight_decay,
        "adam_beta1": settings.adam_beta1,
        "adam_beta2": settings.adam_beta2,
        "adam_eps": settings.adam_epsilon,
        "lora_rank": lora_rank,
    }


def check_start(load: str | None) -> Checkpoint | None:
    """Return the checkpoint in the folder `load`; None if a run begins anew.

    Raises:
        ConfigError: there is none of TRL's, or it has no state to continue from.
    """
    if load is None:
        return None
    folder = Path(load).expanduser()
    checkpoint = checkpoint_in(folder)
    if checkpoint is None:
        raise ConfigError(f"--load {load}: no checkpoint is there. Give the folder of a run or of a checkpoint")
    if checkpoint.format != "hf":
        command = f"Run {conversion_of(load, checkpoint.trainer)}, and give --model the result"
        raise ConfigError(f"--load {load}: {WORDS[checkpoint.format]}, which trl does not read. {command}")
    missing = [name for name in (*STATES, ORDER) if not (folder / name).is_file()]
    if missing:
        raise ConfigError(
            f"--load {load}: {', '.join(missing)} not found, so no run continues it. Give it to --model: a new run "
            "begins with its weights"
        )
    return checkpoint


def start_of(config: RunConfig, settings: GRPOConfig, order: Mapping[str, Any]) -> Start | None:
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
        if now in ("", then := before.get(name, now)) or is_allowed(config, "trainer", name):
            continue
        if name == "tasks":
            raise ConfigError(f"--load {load}: tasks.jsonl has changed since its run began. Give it the same tasks")
        raise ConfigError(f"--load {load}: its run has `{name}` {then}, and this one {now}. Set it as it was")
    done = int(read_object(folder / STATE).get("global_step", 0))
    if done >= settings.max_steps:
        step = done // order["updates"]
        raise ConfigError(f"--load {load}: it has {step} steps already. Set --num-rollout to more than {step}")
    return Start(folder=folder, step=done // order["updates"], model=checkpoint.model)
