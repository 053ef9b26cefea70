"""Plan of a run: everything that can be refused without a request to the server, and what the run plays."""

from __future__ import annotations

import random
from collections.abc import Sequence

from msgspec import Struct
from orl_core.config import RunConfig, TrainerConfig
from orl_core.errors import ConfigError
from orl_core.task import Task
from orl_rollout.edge.secrets import PLATFORM_KEY, api_key, unset_in
from orl_rollout.results.reward_function import load_reward
from orl_rollout.run_folder.contract import Plan, Run
from orl_rollout.run_folder.tracking import tracked_by
from orl_rollout.runtime.player import load_player
from orl_rollout.tasks.file import read_tasks

from orl_tinker.options import DEFAULTS, own_options
from orl_tinker.policy import KEY, has_key
from orl_tinker.resume import Saved, check_order, order_of, saved_in


class Course(Struct, frozen=True, kw_only=True):
    """The course of a run: steps, tasks, and the checkpoint that it continues. `trainer` has no default left."""

    trainer: TrainerConfig
    model: str
    tasks: tuple[Task, ...]
    held_out: tuple[Task, ...]
    saved: Saved | None
    order: dict[str, object]

    @property
    def steps(self) -> int:
        """Return the number of steps of the whole training."""
        return self.trainer.num_rollout or 0

    @property
    def done(self) -> int:
        """Return the number of steps that the checkpoint has."""
        return self.saved.step if self.saved else 0

    @property
    def group_size(self) -> int:
        """Return the number of rollouts of a task."""
        return self.trainer.n_samples or 1

    def tasks_of(self, step: int) -> list[Task]:
        """Return the tasks of a step, from 1, each as often as a group has rollouts. An order depends on the seed."""
        width = self.trainer.rollout_batch_size or 1
        places = range((step - 1) * width, step * width)
        chosen = [self.tasks[self._shuffled(place // len(self.tasks))[place % len(self.tasks)]] for place in places]
        return [task for task in chosen for _ in range(self.group_size)]

    def _shuffled(self, epoch: int) -> Sequence[int]:
        order = list(range(len(self.tasks)))
        random.Random(f"{self.trainer.seed}/{epoch}").shuffle(order)  # noqa: S311 - a run needs repeatable chance
        return order


def course_of(run: Run) -> Course:
    """Return the course of `run`.

    Raises:
        ConfigError: there is no model, the tasks cannot be read or are too few, or the checkpoint cannot be continued.
    """
    config, saved = run.config, saved_in(run.config)
    trainer = config.trainer.with_defaults(DEFAULTS)
    model = saved.model if saved else config.trainer.model
    if not model:
        raise ConfigError("trainer.model is not set. Give --model: a name that the server knows, or a folder for yours")
    tasks = tuple(read_tasks(run.task_data, config)) if run.task_data.is_file() else ()  # a plan prepares none
    held_out = tuple(read_tasks(run.eval_data, config)) if run.eval_data and run.eval_data.is_file() else ()
    groups = trainer.rollout_batch_size or 0
    if tasks and len(tasks) < groups:
        raise ConfigError(f"{run.task_data}: {len(tasks)} tasks, and a step takes {groups}. Lower --rollout-batch-size")
    order = order_of(config, [task.key for task in tasks])
    check_order(config.trainer.load, saved, order, trainer.num_rollout or 0)
    held_out = held_out[: config.eval.max_tasks]
    return Course(trainer=trainer, model=model, tasks=tasks, held_out=held_out, saved=saved, order=order)


def plan_run(run: Run) -> Plan:
    """See `orl_tinker.plan`."""
    load_reward(run.config)
    load_player(run.config)
    course, own = course_of(run), own_options(run.config.trainer)
    trainer, place = course.trainer, own.tinker_url or "Tinker"
    lines = (
        f"would train {course.model} at {place}, on {run.task_data}",
        f"continues {course.saved.path} after step {course.done}" if course.saved else "",
        f"{course.steps} steps of {trainer.rollout_batch_size} x {course.group_size} rollouts, one update each",
        f"trains LoRA adapters of rank {own.lora_rank} with {own.loss_fn}, learning rate {trainer.lr:g}",
    )
    key = "" if has_key(own) else f"not set in the environment: {KEY}"
    return Plan(
        command="\n".join(filter(None, lines)),
        problems=tuple(filter(None, (key, _missing_key(run.config)))),
        notes=(*filter(None, (tracked_by(trainer).note,)), *unset_in(run.config)),
        engine=f"rollouts are sampled at {place}",
    )


def _missing_key(config: RunConfig) -> str:
    """Name the key that an environment needs and this process does not have."""
    needed = any(one.base_url is None or one.send_api_key for one in config.environments.values())
    return f"not set in the environment: {PLATFORM_KEY}" if needed and not api_key() else ""
