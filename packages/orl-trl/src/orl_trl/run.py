"""TRL's GRPOTrainer owns loss and optimizer; orl owns rollouts, measurements and files.

Whoever plays has an event loop on another thread. The model samples on the thread of TRL, while TRL waits in its
`rollout_func`.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import Coroutine, Generator, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from msgspec import structs
from orl_core.config import RunConfig
from orl_core.datum import Datum
from orl_core.errors import ConfigError, OrlError, boundary
from orl_core.estimators import ESTIMATORS
from orl_core.task import Task
from orl_core.text import did_you_mean
from orl_local.engine.engine_plan import split_options
from orl_local.engine.in_process_engine import InProcessEngine, loop_thread
from orl_local.engine.local_model import load_model, on_device
from orl_rollout.edge import interrupt
from orl_rollout.logs import say
from orl_rollout.run_folder.checkpoint import Checkpoint, lasting_name, write_note
from orl_rollout.run_folder.contract import Plan, Run
from orl_rollout.run_folder.metrics_log import with_common_names
from orl_rollout.run_folder.tracking import reporting
from orl_rollout.runtime.stack import open_runtime
from orl_rollout.tokenizer.pretrained import load_pretrained
from orl_rollout.training.course import Course, Record, Schedule, plan_of, schedule_of
from orl_rollout.training.play import Batch, compared, play
from orl_rollout.training.rows import Row
from transformers import HfArgumentParser, PreTrainedModel, TrainerCallback
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer

from orl_trl.options import DEFAULTS, field_of, resolve, reward

PACKAGES = ("torch", "transformers", "trl", "openreward", "orl-core", "orl-rollout", "orl-local", "orl-trl")
NOTE = (
    "TRL has no public seat for a correction with another engine's logprobs; with `loss_type` grpo, sapo, luspo or "
    "dr_grpo a failed rollout counts as a row in the mean"
)
COLUMNS = ("prompt_ids", "completion_ids", "logprobs", "env_mask", "reward")
NOTHING = ((0,), (0,), (0.0,), (0,), None)  # the smallest row that TRL can hold
# TRL's warning about rows without a reward prints their text. They are no news here.
logging.getLogger(GRPOTrainer.__module__).addFilter(lambda record: "All reward functions" not in record.getMessage())


class Seat(TrainerCallback):
    """The `rollout_func` of a GRPOTrainer that trains `model`: it asks, gets columns, trains, and asks again.

    It is a policy, too; see `orl_rollout.training.course.Policy`.
    """

    trainer: GRPOTrainer

    def __init__(self, model: PreTrainedModel) -> None:
        self._model, self._engine = model, InProcessEngine(model)
        self.engine, self.publish = self._engine.client, self._engine.publish
        self.asked, self.columns = Future[Sequence[str]](), Future[Any]()

    def __call__(self, prompts: Sequence[str], trainer: GRPOTrainer) -> Any:
        """Sample, as precisely as `trainer` trains, until the columns are there.

        Raises:
            OrlError: nobody plays any more.
        """
        self.trainer, self._size = trainer, len(prompts)
        self.asked.set_result(prompts)
        with trainer.accelerator.autocast():
            columns = self._engine.serve(until=self.columns)
        self.columns = Future()
        return columns

    async def next(self) -> Sequence[str]:
        """Wait until TRL has trained. Return the prompts for which it asks."""
        prompts = await asyncio.shield(asyncio.wrap_future(self.asked))
        self.asked = Future()
        return prompts

    def hand_over(self, data: Sequence[Datum | None]) -> None:
        """Give TRL a row for each rollout: of one that does not train (None), nothing but a reward of None (L3)."""
        rows = [(one.prompt, one.response, one.logprobs, one.loss_mask, one.reward) if one else NOTHING for one in data]
        self.columns.set_result(dict(zip(COLUMNS, map(list, zip(*rows, strict=True)), strict=True)))

    @contextmanager
    def filled(self, playing: Coroutine[Any, Any, None]) -> Generator[Future[None]]:
        """Play on the loop's thread while the block runs."""

        def end(player: Future[None]) -> None:
            if not player.cancelled() and not self.columns.done():
                self.columns.set_exception(player.exception() or CancelledError())

        with loop_thread() as submit:
            player = submit(interrupt.cancelled(playing))
            player.add_done_callback(end)
            yield player

    def on_step_begin(self, *_: object, **__: object) -> None:
        """Stop before an update, or between two of its passes, if a signal came."""
        interrupt.check()

    on_substep_end = on_step_begin

    async def update(self, rows: Sequence[Row], step: int) -> Mapping[str, float]:
        """Let TRL train on a step. Return its latest numbers, without its rewards."""
        if not rows:
            return {}
        data = {int(row.datum.rollout_id.rpartition("/")[2]): row.datum for row in rows}
        self.hand_over([data.get(place) for place in range(self._size)])
        await self.next()
        log = next((log for log in reversed(self.trainer.state.log_history) if "loss" in log), {})
        numbers = {name: log[name] for name in log if not name.startswith(("reward", "epoch", "step"))}
        return with_common_names(numbers, {"clip_ratio/region_mean": "clip_fraction"})

    async def save(self, folder: Path, step: int) -> None:
        """Write the checkpoint on TRL's thread."""

        def write() -> None:
            fresh, model = folder.with_name(f"{folder.name}.unfinished"), lasting_name(self._model.name_or_path or "")
            with boundary(OrlError, f"saving a checkpoint in {folder}"):
                self.trainer.save_model(str(fresh))
                place = str(folder.absolute())
                write_note(fresh, Checkpoint(format="hf", trainer="trl", model=model, tokenizer=place, step=step))
                shutil.rmtree(folder, ignore_errors=True)
                fresh.rename(folder)

        await self._engine.run(write)


@contextmanager
def rollout_function(config: RunConfig, tasks: Sequence[Task], model: PreTrainedModel) -> Generator[Seat]:
    """Open the `rollout_func` of a GRPOTrainer that trains `model`, with task keys as its prompts.

    Give the trainer `orl_trl.reward` too. Rollouts are recorded if `rollout.journal` names a folder.

    Raises:
        ConfigError: a setting needs another trainer.
    """
    resolve(config)
    seat, by_key = Seat(model), {task.key: task for task in tasks}

    async def answer() -> None:
        step = 0
        async with open_runtime(config, model.name_or_path or "", "", config.trainer.n_samples or 1) as player:
            while True:
                wanted = [by_key[key] for key in await seat.next()]
                step, args = step + 1, vars(seat.trainer.args)
                sampling = {name: args[name] for name in ("temperature", "top_p")}
                batch = Batch(tasks=wanted, name=f"train/{step}", seed=args["seed"], sampling=sampling, step=step)
                outcomes, _ = await compared(config, await play(batch, player, seat.engine(), lambda outcome: outcome))
                seat.hand_over([outcome.datums[0] if outcome.trains else None for outcome in outcomes])

    with seat.filled(answer()):
        yield seat


def train(run: Run) -> None:
    """Train `run.config.trainer.model`; the files are listed in `Run`.

    Raises:
        ConfigError: a setting, the model or the tasks cannot be used.
        RunAborted: too many rollouts ended in ERROR.
    """
    with interrupt.listening(), reporting(run) as report, interrupt.patient():
        settings, schedule = planned(run)
        say(NOTE)
        config, name = run.config, run.config.trainer.model or ""
        model, tokenizer = on_device(load_model(name)), load_pretrained(name)
        tokenizer.chat_template = config.chat_template or tokenizer.chat_template
        seat = Seat(model)
        with boundary(ConfigError, "preparing TRL's trainer"):
            data = Dataset.from_dict({"prompt": [task.key for task in schedule.tasks]})
            trainer = GRPOTrainer(
                model, reward, settings, data, processing_class=tokenizer, callbacks=[seat], rollout_func=seat
            )

        async def course() -> None:
            record = Record(run, PACKAGES, {}, report)
            async with open_runtime(config, name, run.folder, schedule.group_size) as player:
                await seat.next()
                await Course(run, schedule, seat, player, record).run()

        with seat.filled(course()) as ending:
            try:
                with suppress(interrupt.Interrupted), boundary(OrlError, "training with TRL"):
                    trainer.train()
                    seat.asked.set_result(())
            except OrlError as fault:
                if not ending.done():
                    seat.asked.set_exception(fault)
            with suppress(CancelledError), interrupt.held():
                seat.engine().serve(until=ending)
        interrupt.check()


def plan(run: Run) -> Plan:
    """Return what `train` would do, once all is checked that needs no weights.

    Raises:
        ConfigError: a setting or the tasks cannot be used.
    """
    settings, schedule = planned(run)
    steps = f"{schedule.steps} steps of {settings.generation_batch_size} rollouts, {settings.max_steps} updates"
    line = f"would train {run.config.trainer.model} with TRL, on {run.task_data}: {steps}"
    return plan_of(run, (line,), "the model itself", notes=(NOTE,))


def planned(run: Run) -> tuple[GRPOConfig, Schedule]:
    """Plan a run. A step is one update, in a pass for each group, if no flag says otherwise.

    Raises:
        ConfigError: a setting or the tasks cannot be used, a flag is unknown, or batch sizes do not fit together.
    """
    trainer, gpu = run.config.trainer.with_defaults(DEFAULTS), torch.cuda.is_available()
    groups, size = trainer.rollout_batch_size or 0, trainer.n_samples or 0
    if not trainer.model:
        raise ConfigError("trainer.model is not set. Give --model: a checkpoint's folder, or a name on a model hub")
    options = {
        **structs.asdict(trainer),  # `seed` and options of Adam have the same names there
        "learning_rate": trainer.lr,
        "lr_scheduler_type": trainer.lr_decay_style,
        "adam_epsilon": trainer.adam_eps,
        "num_generations": size,
        "per_device_train_batch_size": size,
        "generation_batch_size": groups * size,
        "gradient_accumulation_steps": groups,
        "output_dir": str(run.folder / "trainer"),
        "bf16": gpu,
        "dataloader_pin_memory": gpu,
        "logging_steps": 1,
        "save_strategy": "no",
    }
    with boundary(ConfigError, "the flags of TRL"):
        parser = HfArgumentParser(GRPOConfig, allow_abbrev=False, exit_on_error=False)  # pyright: ignore[reportArgumentType]
        parser.set_defaults(**{name: value for name, value in options.items() if value is not None})
        words = sum(split_options(trainer.own_flags, run.extra), ())
        settings, _, unknown = parser.parse_args_into_dataclasses(words, True, look_for_args_file=False)
        passes = settings.steps_per_generation * settings.num_iterations
        updates, rest = divmod(passes, settings.gradient_accumulation_steps)
    for name in map(field_of, unknown):
        raise ConfigError(f"TRL's GRPOConfig has no `{name}`{did_you_mean(name, vars(settings))}")
    if rest:
        raise ConfigError(f"`gradient_accumulation_steps` does not divide the {passes} passes of a step. Change it")
    schedule = schedule_of(run, trainer, ESTIMATORS["grpo"], 3600.0)
    settings.max_steps = schedule.steps * updates
    return settings, schedule
