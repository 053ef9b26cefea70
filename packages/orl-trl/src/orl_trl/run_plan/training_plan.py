"""The tasks that a run plays, and how it plays them."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any

from msgspec import Struct
from orl_core.errors import ConfigError
from orl_core.task import Task
from orl_rollout.results.outcome import Outcome
from orl_rollout.run_folder.contract import Run
from orl_rollout.tasks.file import read_tasks
from orl_rollout.training.play import compared
from trl.trainer.grpo_config import GRPOConfig

Compare = Callable[[Sequence[Outcome]], Coroutine[Any, Any, tuple[Sequence[Outcome], dict[str, float]]]]


class TrainingPlan(Struct, frozen=True, kw_only=True):
    """The tasks to play, and how. `tasks` by key; `concurrency` is the number of rollouts at once.

    `seed` is the run's; each rollout samples with a seed made of it. `compare` pays the rollouts of a training batch by
    the environment's own comparison, and says how that went.
    """

    tasks: dict[str, Task]
    held_out: tuple[Task, ...]
    eval_samples: int
    concurrency: int
    sampling: dict[str, Any]
    eval_sampling: dict[str, Any]
    seed: int = 0
    compare: Compare | None = None


def plan_of(run: Run, settings: GRPOConfig) -> TrainingPlan:
    """Plan what is to be played.

    Raises:
        ConfigError: the tasks cannot be read or played, or are fewer than one step takes.
    """
    config = run.config
    tasks = {task.key: task for task in read_tasks(run.task_data, config)}
    rows = settings.generation_batch_size or 0
    groups = rows // (settings.num_generations or 1)
    if len(tasks) < groups:
        raise ConfigError(f"{run.task_data}: {len(tasks)} tasks, and a step takes {groups}. Lower --rollout-batch-size")
    held_out = tuple(read_tasks(run.eval_data, config)) if run.eval_data else ()
    return TrainingPlan(
        tasks=tasks,
        held_out=held_out[: config.eval.max_tasks],
        eval_samples=config.eval.samples,
        concurrency=rows,
        sampling={"temperature": settings.temperature, "top_p": settings.top_p},
        seed=settings.seed,
        eval_sampling={"temperature": config.eval.temperature, "top_p": config.eval.top_p},
        compare=None if config.group_reward.mode == "off" else partial(compared, config),
    )
