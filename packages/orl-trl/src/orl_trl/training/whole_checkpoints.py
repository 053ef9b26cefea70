"""Checkpoints of TRL that a later run continues: weights, optimizer, schedule, random state, step and order of tasks.

Transformers writes and reads the states. This module writes them under another name first, and notes the settings that
a run which continues the checkpoint must share (`resume`).
"""

from __future__ import annotations

import shutil
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import msgspec
from orl_core.errors import OrlError, boundary
from orl_rollout.edge import interrupt
from orl_rollout.edge.files import replace
from orl_rollout.memory.estimate import GIB
from orl_rollout.run_folder.checkpoint import Checkpoint, write_note
from peft import PeftModel
from transformers.trainer_utils import rotate_checkpoints

from orl_trl.engine.lora import base_of, load_adapter, policy_weights, save_adapter
from orl_trl.run_plan.resume import ORDER, RANDOM, STATE, Start
from orl_trl.training.micro_batches import MicroBatches


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
    order: Mapping[str, Any]
    start: Start | None = None

    def _get_train_sampler(self, dataset: Any = None) -> Any:
        """Return TRL's sampler. It draws a new order for each epoch, so those of the epochs before are drawn first."""
        sampler = super()._get_train_sampler(dataset)
        if self.start is not None:
            steps = len(cast("Any", self.train_dataset)) // self.order["rollout_batch_size"]
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
                if saved.is_dir():  # there is a README.md, too
                    self._note(saved, folder / saved.name, self.state.global_step // self.order["updates"])
                saved.replace(folder / saved.name)
            rotate_checkpoints(output_dir=str(folder), save_total_limit=self.args.save_total_limit, use_mtime=True)

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Any] | None = None) -> None:
        """Write the weights of the policy, and its adapters, if it has any."""
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
        """Read the adapters, if they train. Transformers would look at the merged weights and load nothing."""
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
                self.state.global_step = step * self.order["updates"]
                self.state.save_to_json(str(fresh / STATE))
            self._note(fresh, folder, step)
            fresh.rename(folder)

    def _note(self, fresh: Path, saved: Path, step: int) -> None:
        """Write the notes of the checkpoint in `fresh`, which is going to be `saved`."""
        tokenizer = str(saved.absolute())
        noted = Checkpoint(format="hf", trainer="trl", model=self.begins_with, tokenizer=tokenizer, step=step)
        write_note(fresh, noted)
        replace(fresh / ORDER, msgspec.json.encode(self.order))
