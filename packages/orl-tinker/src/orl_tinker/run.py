"""A run on the server: its schedule, its plan, and its course."""

from __future__ import annotations

from msgspec import structs
from orl_core.errors import ConfigError
from orl_core.estimators import ESTIMATORS
from orl_rollout.edge import interrupt
from orl_rollout.logs import say
from orl_rollout.run_folder.contract import Plan, Run, refuse_workers
from orl_rollout.run_folder.tracking import Report, reporting
from orl_rollout.training.course import Course, OpenPlayer, Record, Schedule, plan_of, runtime_of, schedule_of
from orl_rollout.training.resume import check_order

from orl_tinker.adapters import KEY, Adapters, has_key
from orl_tinker.options import DEFAULTS, own_options
from orl_tinker.policy import Saved, TinkerPolicy, order_of, saved_in

PACKAGES = ("tinker", "openreward", "orl-core", "orl-rollout", "orl-tinker")


def train(run: Run, open_player: OpenPlayer = runtime_of) -> None:
    """See `orl_tinker.train`. `open_player` opens the player: that of the run, or a test's."""
    schedule, saved = planned(run)
    with interrupt.listening(), reporting(run) as report:
        interrupt.run(_train(run, schedule, saved, open_player, report))


async def _train(run: Run, schedule: Schedule, saved: Saved, open_player: OpenPlayer, report: Report) -> None:
    trainer, patience = schedule.trainer, run.config.rollout.patience
    origin = {"resumed_from": saved.path, "resumed_step": saved.step} if saved.path else {}
    record = Record(run, PACKAGES, origin, report)
    opening = Adapters(trainer, saved.model, saved.path, patience)
    async with opening as adapters, open_player(run, saved.model) as player:
        if saved.path:
            say(f"continues {saved.path} after step {saved.step}")
        policy = TinkerPolicy(adapters, trainer, saved, patience)
        await Course(run, schedule, policy, player, record).run()


def planned(run: Run) -> tuple[Schedule, Saved]:
    """Return the schedule of `run`, and what its checkpoints say. It continues the one that has a path.

    Raises:
        ConfigError: there is no model, the tasks cannot be read or are too few, or the checkpoint cannot be continued.
    """
    trainer = run.config.trainer.with_defaults(DEFAULTS)
    refuse_workers(run.config, "Tinker samples")
    config, saved = structs.replace(run.config, trainer=trainer), saved_in(run.config)
    model = saved.model if saved else trainer.model
    if not model:
        raise ConfigError("trainer.model is not set. Give --model: a name that the server knows, or a folder for yours")
    schedule = schedule_of(run, trainer, ESTIMATORS["grpo"])
    order = order_of(config, schedule.tasks)
    if saved:
        check_order(config, saved.order, order, saved.step, fixed=("lora_rank",))
    start = structs.replace(saved or Saved(path=""), model=model, order=order)
    return structs.replace(schedule, done=start.step), start


def plan_run(run: Run) -> Plan:
    """See `orl_tinker.plan`."""
    (schedule, saved), own = planned(run), own_options(run.config.trainer)
    trainer, place = schedule.trainer, own.tinker_url or "Tinker"
    lines = (
        f"would train {saved.model} at {place}, on {run.task_data}",
        f"continues {saved.path} after step {saved.step}" if saved.path else "",
        f"{schedule.steps} steps of {trainer.rollout_batch_size} x {schedule.group_size} rollouts, one update each",
        f"trains LoRA adapters of rank {own.lora_rank} with {own.loss_fn}, learning rate {trainer.lr:g}",
    )
    key = "" if has_key(own) else f"not set in the environment: {KEY}"
    return plan_of(run, lines, f"rollouts are sampled at {place}", (key,))
