"""A run on the server: its schedule, its plan, and its course."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

from msgspec import structs
from orl_core.config import RunConfig
from orl_core.errors import ConfigError
from orl_rollout.edge import interrupt
from orl_rollout.edge.secrets import PLATFORM_KEY, api_key, unset_in
from orl_rollout.logs import say
from orl_rollout.results.reward_function import load_reward
from orl_rollout.run_folder.contract import Plan, Run
from orl_rollout.run_folder.tracking import Report, reporting, tracked_by
from orl_rollout.runtime.player import load_player
from orl_rollout.runtime.stack import open_runtime
from orl_rollout.tasks.file import read_tasks
from orl_rollout.training.course import Course, Record, Schedule
from orl_rollout.training.play import Player

from orl_tinker.adapters import KEY, Adapters, Start, has_key
from orl_tinker.options import DEFAULTS, own_options
from orl_tinker.policy import TinkerPolicy
from orl_tinker.resume import Saved, check_order, order_of, saved_in

PACKAGES = ("tinker", "openreward", "orl-core", "orl-rollout", "orl-tinker")
OpenPlayer = Callable[[Run, str], AbstractAsyncContextManager[Player]]


def train(run: Run, open_player: OpenPlayer | None = None) -> None:
    """See `orl_tinker.train`. `open_player` opens the player: that of the run, or a test's."""
    schedule, saved = schedule_of(run)
    with interrupt.listening(), reporting(run) as report:
        interrupt.run(_train(run, schedule, saved, open_player or _runtime_of, report))


def _runtime_of(run: Run, model: str) -> AbstractAsyncContextManager[Player]:
    return open_runtime(run.config, model, run.folder, run.config.trainer.n_samples or 1)


async def _train(run: Run, schedule: Schedule, saved: Saved, open_player: OpenPlayer, report: Report) -> None:
    trainer, patience = schedule.trainer, run.config.rollout.patience
    start = Start(model=saved.model, seed=trainer.seed, path=saved.path)
    origin = {"resumed_from": saved.path, "resumed_step": saved.step} if saved.path else {}
    record = Record(run, PACKAGES, lambda: origin)
    async with Adapters(own_options(trainer), start, patience) as adapters, open_player(run, saved.model) as player:
        if saved.path:
            say(f"continues {saved.path} after step {saved.step}")
        policy = TinkerPolicy(adapters, trainer, saved, patience)
        await Course(run, schedule, policy, player, record, report).run()


def schedule_of(run: Run) -> tuple[Schedule, Saved]:
    """Return the schedule of `run`, and what its checkpoints say. It continues the one that has a path.

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
    check_order(config, saved, order, trainer.num_rollout or 0)
    start = structs.replace(saved or Saved(path=""), model=model, order=order)
    held_out = held_out[: config.eval.max_tasks]
    return Schedule(trainer=trainer, tasks=tasks, held_out=held_out, done=start.step), start


def plan_run(run: Run) -> Plan:
    """See `orl_tinker.plan`."""
    load_reward(run.config)
    load_player(run.config)
    (schedule, saved), own = schedule_of(run), own_options(run.config.trainer)
    trainer, place = schedule.trainer, own.tinker_url or "Tinker"
    lines = (
        f"would train {saved.model} at {place}, on {run.task_data}",
        f"continues {saved.path} after step {saved.step}" if saved.path else "",
        f"{schedule.steps} steps of {trainer.rollout_batch_size} x {schedule.group_size} rollouts, one update each",
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
