"""The course of a run: measure, train step by step, measure again, write the results, however it ends.

A step plays a batch with the present weights, makes rows of the outcomes, updates the policy, and publishes the new
weights to the engine. All of it runs on one event loop.
"""

from __future__ import annotations

import asyncio
import platform
import random
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager, suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Protocol

from msgspec import Struct, structs
from orl_core.config import TrainerConfig
from orl_core.errors import ConfigError, OrlError
from orl_core.estimators import Estimator
from orl_core.task import Task

from orl_rollout.edge import interrupt
from orl_rollout.edge.secrets import missing_key, unset_in
from orl_rollout.gpus import gpu_usage
from orl_rollout.logs import logger_of
from orl_rollout.loop.engine import Engine
from orl_rollout.results.metrics import evaluation_metrics, stats_of, training_metrics
from orl_rollout.results.outcome import Outcome, load_reward
from orl_rollout.run_folder import metrics_log
from orl_rollout.run_folder.contract import CHECKPOINT, Plan, Run
from orl_rollout.run_folder.judges import DIFFERENCE, LogprobDrift
from orl_rollout.run_folder.metrics_log import Kind
from orl_rollout.run_folder.summary import BROKE_OFF, Summary, SummaryFile
from orl_rollout.run_folder.tracking import Report, tracked_by
from orl_rollout.runtime.runtime import load_player
from orl_rollout.runtime.workers import open_player
from orl_rollout.tasks.file import read_tasks
from orl_rollout.training.play import Batch, Player, compared, play
from orl_rollout.training.rows import Row, rows_of

STALENESS = "staleness"  # in metrics.jsonl
OpenPlayer = Callable[[Run, str], AbstractAsyncContextManager[Player]]
logger = logger_of("orl")


class Policy(Protocol):
    """The weights that train, and the engine that samples with them. Its methods are called one at a time.

    Each raises an OrlError if the run cannot continue.
    """

    async def update(self, rows: Sequence[Row], step: int) -> Mapping[str, float]:
        """Make all updates of a step, from 1, on its rows. Return the numbers of training.

        Without rows the weights stay as they are. `logprob_difference` among the numbers is judged by the Course.
        """
        ...

    async def publish(self, version: str) -> Mapping[str, float]:
        """Let the engine sample with the present weights, under the name `version`. Return numbers of the way there."""
        ...

    def engine(self) -> Engine:
        """Return the engine of rollouts."""
        ...

    async def save(self, folder: Path, step: int) -> None:
        """Write the checkpoint after `step` steps into `folder`, whole or not at all."""
        ...


class Schedule(Struct, frozen=True, kw_only=True):
    """The tasks of each step, and those of evaluations. `trainer` has no default left; `done` steps were trained.

    `ahead`: the rollouts of a step play while the one before trains. `save_seconds` is the limit of the last checkpoint
    of a run that is interrupted; None: there is none.
    """

    trainer: TrainerConfig
    estimator: Estimator
    tasks: tuple[Task, ...]
    held_out: tuple[Task, ...] = ()
    done: int = 0
    ahead: bool = False
    save_seconds: float | None = 60.0

    @property
    def steps(self) -> int:
        """Return the number of steps of the whole training."""
        return self.trainer.num_rollout or 0

    @property
    def group_size(self) -> int:
        """Return the number of rollouts of a task."""
        return self.trainer.n_samples or 1

    def tasks_of(self, step: int) -> list[Task]:
        """Return the tasks of a step, from 1. Their order depends on the seed."""
        width = self.trainer.rollout_batch_size or 1
        return [self._task(place) for place in range((step - 1) * width, step * width)]

    def _task(self, place: int) -> Task:
        epoch, place = divmod(place, len(self.tasks))
        order = list(self.tasks)
        random.Random(f"{self.trainer.seed}/{epoch}").shuffle(order)  # noqa: S311 - a run needs repeatable chance
        return order[place]


def schedule_of(run: Run, trainer: TrainerConfig, estimator: Estimator, save_seconds: float | None = 60.0) -> Schedule:
    """Return the schedule of a run that begins anew. It has no tasks in a plan that prepares none.

    Raises:
        ConfigError: they cannot be read or are fewer than a step takes, or a group has one rollout.
    """
    config, groups = run.config, trainer.rollout_batch_size or 0
    if (trainer.n_samples or 0) < 2:
        raise ConfigError("`n_samples` is 1, and a rollout is compared with its group: give 2 or more (--n-samples)")
    tasks = tuple(read_tasks(run.task_data, config)) if run.task_data.is_file() else ()
    held_out = tuple(read_tasks(run.eval_data, config)) if run.eval_data and run.eval_data.is_file() else ()
    held_out = held_out[: config.eval.max_tasks]
    if tasks and len(tasks) < groups:
        raise ConfigError(f"{run.task_data}: {len(tasks)} tasks, and a step takes {groups}. Lower --rollout-batch-size")
    return Schedule(trainer=trainer, estimator=estimator, tasks=tasks, held_out=held_out, save_seconds=save_seconds)


def runtime_of(run: Run, model: str) -> AbstractAsyncContextManager[Player]:
    """Open the player of a run; `model` is the checkpoint whose tokenizer it uses."""
    return open_player(run.config, model, run.folder, run.config.trainer.n_samples or 1)


def plan_of(
    run: Run, lines: Sequence[str], engine: str, problems: Sequence[str] = (), notes: Sequence[str] = ()
) -> Plan:
    """Return the plan of a run that a Course is going to drive. Texts that are empty are left out.

    Raises:
        ConfigError: the reward function, the agent or a tracker cannot be loaded.
    """
    load_reward(run.config)
    load_player(run.config)
    return Plan(
        command="\n".join(filter(None, lines)),
        problems=tuple(filter(None, (*problems, missing_key(run.config)))),
        notes=tuple(filter(None, (tracked_by(run.config.trainer).note, *notes, *unset_in(run.config)))),
        engine=engine,
    )


class Record:
    """The files of a run while it trains: a line of metrics for each step, the summary, the judge of drift.

    `steps` is the number of steps so far. `facts` are what else the summary says. `report` gets each line,
    `drift` judges the difference of both logprobs.
    """

    def __init__(self, run: Run, packages: Sequence[str], facts: Mapping[str, Any], report: Report) -> None:
        self.steps = 0
        self._run, self._facts, self._report = run, facts, report
        self._ending: dict[str, Any] = {"error": BROKE_OFF}
        self._versions = versions_of(packages)
        self._history = run.folder / "metrics.jsonl"
        self._summary = SummaryFile(run.folder, self._summary_of)
        self.drift = LogprobDrift(run.config.trainer.max_logprob_difference)

    def add(
        self, kind: Kind, step: int, outcomes: Sequence[Outcome], more: Mapping[str, float], *, seconds: float
    ) -> None:
        """Write the line of a step or an evaluation.

        Raises:
            OrlError: it cannot be written.
        """
        by_name = evaluation_metrics if kind == "eval" else training_metrics
        metrics = {**more, **by_name(map(stats_of, outcomes))}
        metrics_log.append(self._history, kind, step, metrics, seconds=seconds)
        if kind == "train":
            self.steps = step
            if DIFFERENCE in metrics and not metrics.get(STALENESS):
                self.drift.add(metrics[DIFFERENCE])
        self._report(kind, step, metrics)

    @contextmanager
    def running(self) -> Generator[None]:
        """Note how the block ends. A signal is in the summary at once."""
        with interrupt.notified(self._summary.interrupted):
            try:
                yield
                self._ending = {}
            except (asyncio.CancelledError, KeyboardInterrupt):
                self._ending = {"interrupted": True}
                raise
            except (OrlError, OSError) as error:
                self._ending = {"error": str(error)}
                raise

    @contextmanager
    def concluded(self) -> Generator[Mapping[str, Any]]:
        """Write the summary before and after the block, which saves the weights. Yield how the run ended, if not whole.

        Raises:
            OrlError: the weights cannot be saved, and nothing else ended the run.
        """
        self._summary.interrupted()
        try:
            yield self._ending
        except (OrlError, TimeoutError) as fault:
            why = str(fault) or "saving took too long"
            self._summary.end({"error": why, **self._ending})
            if not self._ending:
                raise
            logger.error("the steps since the last checkpoint are lost: %s", why)
        else:
            self._summary.end(self._ending)

    def _summary_of(self) -> Summary:
        return structs.replace(
            Summary.of(self._run.config, metrics_log.read(self._history)),
            steps=self.steps,
            seconds_total=round(time.monotonic() - self._run.started, 1),
            versions=self._versions,
            **self._facts,
            **self._run.facts,
        )


def versions_of(packages: Sequence[str]) -> dict[str, str]:
    """Return the versions of Python and of those `packages` that are installed."""
    numbers = {"python": platform.python_version()}
    for name in packages:
        with suppress(PackageNotFoundError):
            numbers[name] = version(name)
    return numbers


class Played(Struct, frozen=True, kw_only=True):
    """The rollouts of a step, with metrics of their rewards. `version` is the number of steps of their weights."""

    outcomes: Sequence[Outcome]
    scored: Mapping[str, float]
    seconds: float
    version: int


class Course:
    """One run of an open `policy` and `player`."""

    def __init__(self, run: Run, schedule: Schedule, policy: Policy, player: Player, record: Record) -> None:
        self._run, self._schedule, self._policy, self._player = run, schedule, policy, player
        self._record, self._measured = record, -1
        self._saved = record.steps = schedule.done
        self._ahead: asyncio.Task[Played] | None = None

    async def run(self) -> None:
        """Train to the end. Summary and checkpoint are written on every path, also on a signal and from the breaker."""
        with gpu_usage() as self._gpu_usage:
            try:
                with self._record.running():
                    await self._train()
            finally:
                if self._ahead:
                    self._ahead.cancel()
                    with suppress(asyncio.CancelledError):  # a further signal: the weights are saved nevertheless
                        await asyncio.gather(self._ahead, return_exceptions=True)
                with self._record.concluded() as ending:
                    if self._record.steps > self._saved:
                        await asyncio.wait_for(self.save(), self._schedule.save_seconds if ending else None)

    async def _train(self) -> None:
        await self._policy.publish(str(self._record.steps))
        await self.measure()
        trainer, evaluation = self._schedule.trainer, self._run.config.eval
        while (done := self._record.steps) < self._schedule.steps:
            await self.step(done + 1)
            if trainer.save_interval and (done + 1) % trainer.save_interval == 0:
                await self.save()
            if interrupt.received():  # a policy may finish its update or its checkpoint first
                raise asyncio.CancelledError
            if evaluation.interval and (done + 1) % evaluation.interval == 0:
                await self.measure()
        await self.measure()

    async def step(self, step: int) -> None:
        """Play a batch of groups, train on it, and let the engine have the new weights.

        If rollouts are a batch ahead, those of the next step play meanwhile, all of them with the weights of now.
        """
        started = time.monotonic()
        played = await (self._ahead or self._batch(step))
        self._ahead = None
        if self._schedule.ahead and step < self._schedule.steps:
            self._ahead = asyncio.create_task(self._batch(step + 1))
        turns = self._run.config.turn_advantages
        rows = rows_of(played.outcomes, self._schedule.group_size, self._schedule.estimator, turns=turns)
        began = time.monotonic()
        trained = await self._policy.update(rows, step)
        updated = waited = time.monotonic()
        synced: Mapping[str, float] = {}
        try:
            if self._ahead:
                if interrupt.received():  # the update was finished first
                    raise asyncio.CancelledError
                await asyncio.wait({self._ahead})
                waited = time.monotonic()
            synced = await self._policy.publish(str(step))
        finally:  # whatever becomes of the rest: the weights are those of this step
            ended = time.monotonic()
            seconds = {
                "rollout_seconds": played.seconds,
                "train_seconds": updated - began,
                "weight_sync_seconds": ended - waited,
                "step_seconds": ended - started,
            }
            stale = {STALENESS: float(step - 1 - played.version)} if self._schedule.ahead else {}
            more = {**trained, **synced, **played.scored, **stale, **seconds, **self._gpu_usage()}
            self._record.add("train", step, played.outcomes, more, seconds=ended - started)
        if fault := self._record.drift.fault:
            raise OrlError(fault)

    async def _batch(self, step: int) -> Played:
        """Play the rollouts of a step with the weights of now."""
        started, version = time.monotonic(), self._record.steps
        outcomes, scored = await compared(self._run.config, await self._play("train", step))
        return Played(outcomes=outcomes, scored=scored, seconds=time.monotonic() - started, version=version)

    async def measure(self) -> None:
        """Play the held-out tasks, if there are any, once for the same weights."""
        step = self._record.steps
        if not self._schedule.held_out or self._measured == step:
            return
        started = time.monotonic()
        outcomes = await self._play("eval", step)
        self._measured = step
        self._record.add("eval", step, outcomes, self._gpu_usage(), seconds=time.monotonic() - started)

    async def save(self) -> None:
        """Write the checkpoint of the steps so far."""
        await self._policy.save(self._run.folder / CHECKPOINT, self._record.steps)
        self._saved = self._record.steps

    async def _play(self, kind: Kind, step: int) -> list[Outcome]:
        schedule, held_out = self._schedule, self._run.config.eval
        sampling = {"temperature": schedule.trainer.temperature, "top_p": 1.0}
        batch = Batch(
            tasks=schedule.tasks_of(step) if kind == "train" else schedule.held_out,
            samples=schedule.group_size if kind == "train" else held_out.samples,
            name=f"{kind}/{step}",
            seed=schedule.trainer.seed,
            sampling=sampling if kind == "train" else {"temperature": held_out.temperature, "top_p": held_out.top_p},
            step=step,
            evaluation=kind == "eval",
        )
        return await play(batch, self._player, self._policy.engine(), lambda outcome: outcome)
