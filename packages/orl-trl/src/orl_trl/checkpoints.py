"""Checkpoints of TRL that a later run continues: weights, optimizer, schedule, random state, step and order of tasks.

Transformers writes and reads the states. This module writes them under another name first, notes what the order of the
tasks depends on, and refuses a checkpoint that would continue in another way than its own run.
"""

from __future__ import annotations

import shutil
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any, cast

import msgspec
import torch
from msgspec import Struct, structs
from orl_core.errors import ConfigError, OrlError, boundary
from orl_core.memory.report import GIB
from orl_rollout.edge import interrupt
from orl_rollout.edge.files import replace
from orl_rollout.run_folder.checkpoint import WORDS, Checkpoint, checkpoint_in, conversion_of, write_note
from orl_rollout.run_folder.config_file import read_object
from peft import PeftModel
from transformers.trainer_utils import rotate_checkpoints
from trl.trainer.grpo_config import GRPOConfig

from orl_trl.lora import base_of, load_adapter, policy_weights, save_adapter
from orl_trl.micro_batches import MicroBatches
from orl_trl.settings import optimizer_of, updates_per_step

STATE = "trainer_state.json"
RANDOM = "rng_state.pth"
STATES = (STATE, "optimizer.pt", "scheduler.pt", RANDOM)
ORDER = "orl_order.json"


class Order(Struct, frozen=True, kw_only=True):
    """Values that a run and the one that continues it share. `tasks` is a digest of their keys.

    "" is a value that is not known. The order of the tasks depends on all but `optimizer`.
    """

    seed: int
    rollout_batch_size: int
    n_samples: int
    updates: int
    tasks: str = ""
    optimizer: str = ""


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
    for name, before, now in _changes(folder, settings, order):
        if name == "tasks":
            raise ConfigError(f"--load {load}: tasks.jsonl has changed since its run began. Give it the same tasks")
        raise ConfigError(f"--load {load}: its run has `{name}` {before}, and this one {now}. Set it as it was")
    done = int(read_object(folder / STATE).get("global_step", 0))
    if done >= settings.max_steps:
        step = done // order.updates
        raise ConfigError(f"--load {load}: it has {step} steps already. Set --num-rollout to more than {step}")
    return Start(folder=folder, step=done // order.updates, model=found.model)


def _changes(folder: Path, settings: GRPOConfig, order: Order) -> Iterator[tuple[str, Any, Any]]:
    """Yield what the checkpoint and this run have differently: the name, the value before, the value now."""
    noted = structs.asdict(msgspec.convert(read_object(folder / ORDER), Order))
    for name, now in structs.asdict(order).items():
        if noted[name] != now and "" not in (noted[name], now):
            yield name, noted[name], now
    with boundary(ConfigError, f"reading {folder / 'optimizer.pt'}"):
        saved = torch.load(folder / "optimizer.pt", map_location="cpu", weights_only=True, mmap=True)
    group: dict[str, Any] = saved["param_groups"][0]
    wanted = {
        "initial_lr": settings.learning_rate,
        "betas": (settings.adam_beta1, settings.adam_beta2),
        "eps": settings.adam_epsilon,
        "weight_decay": settings.weight_decay,
    }
    named = {"initial_lr": "lr", "betas": "adam_beta1, adam_beta2", "eps": "adam_eps"}
    for name, now in wanted.items():
        if name in group and group[name] != now:
            yield named.get(name, name), group[name], now


@contextmanager
def _whole(fresh: Path) -> Generator[None]:
    """Let the block write into `fresh` and move what is whole. What is left in `fresh` then is removed: it holds disk.

    Raises:
        OrlError: the block fails. The error says how much disk was free, because torch does not name a full disk.
    """
    try:
        with boundary(OrlError, f"saving a checkpoint in {fresh.parent}"):
            yield
    except OrlError as fault:
        free = shutil.disk_usage(fresh.parent).free / GIB
        line = str(fault).splitlines()[0]
        advice = "If that is too little, make room. --load continues from the last whole checkpoint"
        raise OrlError(f"{line}; {free:.2f} GiB of this disk are free. {advice}") from fault
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


class WholeCheckpoints(MicroBatches):
    """TRL's trainer, whose `save_interval` writes a checkpoint under another name and renames it when it is whole.

    `begins_with` is the model that training began with, `order` what the tasks' order depends on, `start` the
    checkpoint that this run continues.
    """

    begins_with = ""
    order: Order
    start: Start | None = None

    def _get_train_sampler(self, dataset: Any = None) -> Any:
        """Return TRL's sampler. It draws a new order for each epoch, so those of the epochs before are drawn first."""
        sampler = super()._get_train_sampler(dataset)
        if self.start is not None:
            steps = len(cast("Any", self.train_dataset)) // self.order.rollout_batch_size
            for _ in range(self.start.step // steps):
                next(iter(sampler))
        return sampler

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        folder = Path(self.args.output_dir or ".")
        unfinished = folder / "unfinished"
        with interrupt.held(), _whole(unfinished):
            self.args.output_dir = str(unfinished)
            try:
                super()._save_checkpoint(model, trial)
            finally:
                self.args.output_dir = str(folder)
            for saved in unfinished.iterdir():
                if saved.is_dir():  # a README.md lies beside it
                    self._note(saved, folder / saved.name, self.state.global_step // self.order.updates)
                saved.replace(folder / saved.name)
            rotate_checkpoints(output_dir=str(folder), save_total_limit=self.args.save_total_limit, use_mtime=True)

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Any] | None = None) -> None:
        """Write the weights of the policy, and the adapters beside them where it has any."""
        model = cast("Any", self.model)
        base = base_of(model)
        if base is not model:
            state_dict = {name: weight.cpu() for name, weight in policy_weights(model)}
        self.model = base
        try:
            super()._save(output_dir, state_dict)
        finally:
            self.model = model
        save_adapter(model, Path(output_dir or self.args.output_dir or "."))

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        """Read the adapters, where they train. Transformers would look at the merged weights and load nothing."""
        if isinstance(self.model, PeftModel):
            load_adapter(self.model, Path(resume_from_checkpoint))
        else:
            super()._load_from_checkpoint(resume_from_checkpoint, model)

    def note_random_state(self) -> None:
        """Keep the random state at the end of a step. The next step draws from it before it can be interrupted."""
        fresh = Path(self.args.output_dir or ".") / "random"
        with _whole(fresh):
            self._save_rng_state(str(fresh))
            (fresh / RANDOM).replace(fresh.parent / RANDOM)

    def save_whole(self, folder: Path, step: int) -> None:
        """Write weights and states after `step` steps into `folder`, once all of it is on disk.

        Updates of a step that did not end are in the weights, and the step is played again by who continues.

        Raises:
            OrlError: it cannot be written. Nothing of it is left.
        """
        fresh = folder.with_name(f"{folder.name}.unfinished")
        with _whole(fresh):
            self.save_model(str(fresh))
            if not self.args.save_only_model:
                self._save_optimizer_and_scheduler(str(fresh))
                Path(self.args.output_dir or ".", RANDOM).replace(fresh / RANDOM)
                self.state.global_step = step * self.order.updates
                self.state.save_to_json(str(fresh / STATE))
            self._note(fresh, folder, step)
            fresh.rename(folder)

    def _note(self, fresh: Path, saved: Path, step: int) -> None:
        """Write the notes of the checkpoint in `fresh`, which is going to be `saved`."""
        tokenizer = str(saved.absolute())
        noted = Checkpoint(format="hf", trainer="trl", model=self.begins_with, tokenizer=tokenizer, step=step)
        write_note(fresh, noted)
        replace(fresh / ORDER, msgspec.json.encode(self.order))
