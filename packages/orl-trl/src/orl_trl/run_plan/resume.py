"""The checkpoint that a run continues, refused if the run would continue in another way than the one that wrote it."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path

import msgspec
from msgspec import Struct, structs
from orl_core.errors import ConfigError, boundary
from orl_rollout.run_folder.checkpoint import WORDS, Checkpoint, checkpoint_in, conversion_of
from orl_rollout.run_folder.config_file import read_object
from trl.trainer.grpo_config import GRPOConfig

from orl_trl.run_plan.settings import optimizer_of, updates_per_step

STATE = "trainer_state.json"
RANDOM = "rng_state.pth"
STATES = (STATE, "optimizer.pt", "scheduler.pt", RANDOM)
ORDER = "orl_order.json"


class Order(Struct, frozen=True, kw_only=True):
    """Settings that a run and the one that continues it share. `tasks` is a digest of their keys; "" is not known.

    The order of the tasks depends on the first five.
    """

    seed: int
    rollout_batch_size: int
    n_samples: int
    updates: int
    tasks: str
    optimizer: str
    lr: float
    weight_decay: float
    adam_beta1: float
    adam_beta2: float
    adam_eps: float


class Start(Struct, frozen=True, kw_only=True):
    """The checkpoint that a run continues, after `step` steps. `model` is the one that its training began with."""

    folder: Path
    step: int
    model: str


def order_of(settings: GRPOConfig, tasks: Sequence[str] = ()) -> Order:
    """Return the order of a run over `tasks`, their keys."""
    members = settings.num_generations or 1
    return Order(
        seed=settings.seed,
        rollout_batch_size=(settings.generation_batch_size or 0) // members,
        n_samples=members,
        updates=updates_per_step(settings),
        tasks=sha256("\n".join(tasks).encode()).hexdigest() if tasks else "",
        optimizer=optimizer_of(settings),
        lr=settings.learning_rate,
        weight_decay=settings.weight_decay,
        adam_beta1=settings.adam_beta1,
        adam_beta2=settings.adam_beta2,
        adam_eps=settings.adam_epsilon,
    )


def check_start(load: str | None) -> Checkpoint | None:
    """Return the checkpoint in the folder `load`; None where a run begins anew.

    Raises:
        ConfigError: there is none of TRL's, or it has no state to continue from.
    """
    if load is None:
        return None
    folder = Path(load).expanduser()
    found = checkpoint_in(folder)
    if found is None:
        raise ConfigError(f"--load {load}: no checkpoint is there. Give the folder of a run or of a checkpoint")
    if found.format != "hf":
        command = conversion_of(load, found.trainer)
        raise ConfigError(
            f"--load {load}: {WORDS[found.format]}, which trl does not read. Run {command}, and give --model the result"
        )
    missing = [name for name in (*STATES, ORDER) if not (folder / name).is_file()]
    if missing:
        raise ConfigError(
            f"--load {load}: {', '.join(missing)} not found, so no run continues it. Give it to --model: a new run "
            "begins with its weights"
        )
    return found


def start_of(load: str | None, settings: GRPOConfig, order: Order) -> Start | None:
    """Return where a run begins that continues the checkpoint in `load`; None where it begins anew.

    Raises:
        ConfigError: as `check_start`, or a setting would continue it differently.
    """
    found = check_start(load)
    if found is None:
        return None
    folder = Path(load or "").expanduser()
    with boundary(ConfigError, f"reading {folder / ORDER}"):
        before = msgspec.convert(read_object(folder / ORDER), Order)
    for name, now in structs.asdict(order).items():
        if now in ("", then := getattr(before, name)):
            continue
        if name == "tasks":
            raise ConfigError(f"--load {load}: tasks.jsonl has changed since its run began. Give it the same tasks")
        raise ConfigError(f"--load {load}: its run has `{name}` {then}, and this one {now}. Set it as it was")
    done = int(read_object(folder / STATE).get("global_step", 0))
    if done >= settings.max_steps:
        step = done // order.updates
        raise ConfigError(f"--load {load}: it has {step} steps already. Set --num-rollout to more than {step}")
    return Start(folder=folder, step=done // order.updates, model=found.model)
