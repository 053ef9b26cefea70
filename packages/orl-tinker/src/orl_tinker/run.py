"""A run on the server: its schedule, its plan, and its course."""

from __future__ import annotations

from msgspec import structs
from orl_core.errors import ConfigError
from orl_core.estimators import ESTIMATORS
from orl_rollout.edge import interrupt
from orl_rollout.logs import say
from orl_rollout.run_folder.contract import Plan, Run
from orl_rollout.run_folder.tracking import Report, reporting
from orl_rollout.training.course import Course, OpenPlayer, Record, Schedule, plan_of, runtime_of, tasks_of

from orl_tinker.adapters import KEY, Adapters, Start, has_key
from orl_tinker.options import DEFAULTS, own_options
from orl_tinker.policy import TinkerPolicy
from orl_tinker.resume import Saved, check_order, order_of, saved_in

PACKAGES = ("tinker", "openreward", "orl-core", "orl-rollout", "orl-tinker")


def train(run: Run, open_player: OpenPlayer | None = None) -> None:
    """See `orl_tinker.train`. `open_player` opens the player: that of the run, or a test's."""
    schedule, saved = schedule_of(run)
    with interrupt.listening(), reporting(run) as report:
        interrupt.run(_train(run, schedule, saved, open_player or runtime_of, report))


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
    tasks, held_out = tasks_of(run, trainer.rollout_batch_size or 0)
    order = order_of(config, [task.key for task in tasks])
    check_order(config, saved, order, trainer.num_rollout or 0)
    start = structs.replace(saved or Saved(path=""), model=model, order=order)
    return Schedule(
        trainer=trainer, estimator=ESTIMATORS["grpo"], tasks=tasks, held_out=held_out, done=start.step
    ), start


def plan_run(run: Run) -> Plan:
    """See `orl_tinker.plan`."""
    (schedule, saved), own = schedule_of(run), own_options(run.config.trainer)
    trainer, place = schedule.trainer, own.tinker_url or "Tinker"
    lines = (
        f"would train {saved.model} at {place}, on {run.task_data}",
        f"continues {saved.path} after step {saved.step}" if saved.path else "",
        f"{schedule.steps} steps of {trainer.rollout_batch_size} x {schedule.group_size} rollouts, one update each",
        f"trains LoRA adapters of rank {own.lora_rank} with {own.loss_fn}, learning rate {trainer.lr:g}",
    )
    key = "" if has_key(own) else f"not set in the environment: {KEY}"
    return plan_of(run, lines, f"rollouts are sampled at {place}", (key,))
