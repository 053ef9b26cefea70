"""One run: measure, train step by step, measure again, write the results, however it ends.

A step plays a batch with the weights as they are, makes one update of it, and copies the weights to the sampler. All of
it runs on one event loop; the SDK has a thread of its own.
"""

from __future__ import annotations

import asyncio
import math
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from importlib.metadata import version
from statistics import fmean
from typing import Any, Protocol

from msgspec import UNSET, structs
from orl_core.errors import OrlError
from orl_core.task import Task
from orl_rollout.edge import interrupt
from orl_rollout.logs import logger_of, say
from orl_rollout.loop.engine import Engine
from orl_rollout.loop.sampling import sampling_seed
from orl_rollout.openreward import OpenRewardClient
from orl_rollout.results.metrics import evaluation_metrics, stats_of, training_metrics
from orl_rollout.results.outcome import Outcome
from orl_rollout.run_folder import metrics_log
from orl_rollout.run_folder.contract import Run
from orl_rollout.run_folder.logprob_drift import DIFFERENCE, LogprobDrift
from orl_rollout.run_folder.summary import BROKE_OFF, Summary, SummaryFile
from orl_rollout.run_folder.tracking import Report, reporting
from orl_rollout.run_folder.training_metrics import with_common_names
from orl_rollout.runtime.group_scores import compare
from orl_rollout.runtime.runtime import RolloutRequest
from orl_rollout.runtime.stack import open_runtime, play_all
from tinker import AdamParams

from orl_tinker.engine import TinkerEngine
from orl_tinker.options import own_options
from orl_tinker.plan import Course, course_of
from orl_tinker.policy import Policy, Start, Trained, Update
from orl_tinker.resume import Saved, write_checkpoint
from orl_tinker.rows import Row, rows_of, tinker_datum, trained_ids

SAVE_SECONDS = 60.0  # for the last checkpoint of a run that is interrupted
PACKAGES = ("tinker", "openreward", "orl-core", "orl-rollout", "orl-tinker")
NAMES = {"loss:sum": "loss", "unclipped_grad_l2:mean": "grad_norm"}
logger = logger_of("orl")


class Player(Protocol):
    """The player of tasks: `orl_rollout.runtime.runtime.Runtime`, or a fake."""

    async def play(self, request: RolloutRequest, engine: Engine, /) -> Outcome:
        """Play one rollout."""
        ...


OpenPlayer = Callable[[Run, str], AbstractAsyncContextManager[Player]]


def train(run: Run, open_player: OpenPlayer | None = None) -> None:
    """See `orl_tinker.train`. `open_player` opens the player: that of the run, or a test's."""
    course = course_of(run)
    with interrupt.listening(), reporting(run) as report:
        interrupt.run(_train(run, course, open_player or _runtime_of, report))


def _runtime_of(run: Run, model: str) -> AbstractAsyncContextManager[Player]:
    return open_runtime(run.config, model, run.folder, run.config.trainer.n_samples or 1)


async def _train(run: Run, course: Course, open_player: OpenPlayer, report: Report) -> None:
    own, patience = own_options(run.config.trainer), run.config.rollout.patience
    start = Start(model=course.model, seed=course.trainer.seed, path=course.saved.path if course.saved else "")
    async with Policy(own, start, patience) as policy, open_player(run, course.model) as player:
        if course.saved:
            say(f"continues {course.saved.path} after step {course.done}")
        await Training(run, course, policy, player, report).run()


class Training:
    """One run on an open `policy` and `player`; `report` takes the rows of its metrics."""

    def __init__(self, run: Run, course: Course, policy: Policy, player: Player, report: Report) -> None:
        self._run, self._course, self._policy, self._player, self._report = run, course, policy, player, report
        self._own = own_options(run.config.trainer)
        self._engine = TinkerEngine(policy.sample, run.config.rollout.patience)
        self._history = run.folder / "metrics.jsonl"
        self._steps = self._saved = course.done
        self._measured = -1
        self._summary = SummaryFile(run.folder, self._summary_of)
        self._drift = LogprobDrift(run.config.trainer.max_logprob_difference)

    async def run(self) -> None:
        """Train to the end. Summary and checkpoint are written on every path, also on a signal and from the breaker."""
        ending: dict[str, Any] = {"error": BROKE_OFF}
        with interrupt.notified(self._summary.interrupted):
            try:
                await self._train()
                ending = {}
            except asyncio.CancelledError:
                ending = {"interrupted": True}
                raise
            except (OrlError, OSError) as error:
                ending = {"error": str(error)}
                raise
            finally:
                await self._conclude(ending)

    async def _train(self) -> None:
        await self._refresh()
        await self._measure()
        trainer, evaluation = self._course.trainer, self._run.config.eval
        while self._steps < self._course.steps:
            await self._step(self._steps + 1)
            if self._drift.fault:
                raise OrlError(self._drift.fault)
            if trainer.save_interval and self._steps % trainer.save_interval == 0:
                await self._save()
            if evaluation.interval and self._steps % evaluation.interval == 0:
                await self._measure()
        await self._measure()

    async def _step(self, step: int) -> None:
        started = time.monotonic()
        sampling = {"temperature": self._course.trainer.temperature, "top_p": 1.0}
        outcomes = await self._play(self._course.tasks_of(step), f"train/{step}", sampling, step=step)
        compared: dict[str, float] = {}
        if self._run.config.group_reward.mode != "off":
            outcomes, compared = await self._compared(outcomes)
        played = time.monotonic()
        rows = rows_of(outcomes, self._course.group_size, turns=self._run.config.turn_advantages)
        more = await self._update(rows, step) if rows else {}
        trained = time.monotonic()
        await self._refresh(step)
        now = time.monotonic()
        seconds = {"rollout_seconds": played - started, "train_seconds": trained - played}
        more |= {**compared, **seconds, "weight_sync_seconds": now - trained, "step_seconds": now - started}
        self._add("train", step, outcomes, seconds=now - started, more=more)
        self._steps = step

    async def _update(self, rows: Sequence[Row], step: int) -> dict[str, float]:
        """Make the update of a step. Return its numbers."""
        ids, adam = trained_ids(rows), self._adam(step)
        trained = await self._policy.update(Update([tinker_datum(row, ids) for row in rows], adam))
        difference = difference_of(rows, trained)
        if difference is not None:
            self._drift.add(difference)
        own = {"learning_rate": adam.learning_rate, "response_tokens": fmean(len(row.datum.response) for row in rows)}
        own |= {} if difference is None else {DIFFERENCE: difference}
        return {**with_common_names(trained.metrics, NAMES), **own}

    def _adam(self, step: int) -> AdamParams:
        trainer = self._course.trainer
        progress = (step - 1) / self._course.steps
        decay = {"linear": 1 - progress, "cosine": (1 + math.cos(math.pi * progress)) / 2}
        return AdamParams(
            learning_rate=(trainer.lr or 0.0) * decay.get(trainer.lr_decay_style or "", 1.0),
            beta1=trainer.adam_beta1 or 0.0,
            beta2=trainer.adam_beta2 or 0.0,
            eps=trainer.adam_eps or 0.0,
            weight_decay=trainer.weight_decay or 0.0,
            grad_clip_norm=self._own.grad_clip_norm,
        )

    async def _refresh(self, step: int | None = None) -> None:
        await self._policy.refresh()
        self._engine.weight_version = str(self._steps if step is None else step)

    async def _compared(self, outcomes: Sequence[Outcome]) -> tuple[list[Outcome], dict[str, float]]:
        config = self._run.config
        async with OpenRewardClient(config) as client:
            return await compare(outcomes, client, config.group_reward, patience=config.rollout.patience)

    async def _play(
        self, tasks: Sequence[Task], name: str, sampling: Mapping[str, Any], *, step: int, evaluation: bool = False
    ) -> list[Outcome]:
        seed = self._course.trainer.seed
        requests = [
            RolloutRequest(
                task=task,
                rollout_id=f"{name}/{row}",
                sampling={**sampling, "sampling_seed": sampling_seed(seed, task.key, f"{name}/{row}")},
                evaluation=evaluation,
                step=step,
            )
            for row, task in enumerate(tasks)
        ]
        return await play_all(self._player.play, requests, self._engine, len(requests))

    async def _measure(self) -> None:
        """Play the held-out tasks, if there are any, once for the same weights."""
        if not self._course.held_out or self._measured == self._steps:
            return
        started, own = time.monotonic(), self._run.config.eval
        tasks = [task for task in self._course.held_out for _ in range(own.samples)]
        sampling = {"temperature": own.temperature, "top_p": own.top_p}
        step = self._steps
        outcomes = await self._play(tasks, f"eval/{step}", sampling, step=step, evaluation=True)
        self._measured = step
        self._add("eval", step, outcomes, seconds=time.monotonic() - started)

    def _add(
        self,
        kind: metrics_log.Kind,
        step: int,
        outcomes: Sequence[Outcome],
        *,
        seconds: float,
        more: Mapping[str, float] | None = None,
    ) -> None:
        by_name = evaluation_metrics if kind == "eval" else training_metrics
        metrics = {**(more or {}), **by_name(map(stats_of, outcomes))}
        metrics_log.append(self._history, kind, step, metrics, seconds=seconds)
        self._report(kind, step, metrics)

    async def _save(self) -> None:
        path = await self._policy.save(f"step-{self._steps}")
        saved = Saved(path=path, step=self._steps, model=self._course.model, order=self._course.order)
        write_checkpoint(self._run.folder, saved)
        self._saved = self._steps

    async def _conclude(self, ending: dict[str, Any]) -> None:
        """Write the summary, the last checkpoint, and the summary again. An error that ended the run counts.

        Raises:
            OrlError: the checkpoint cannot be saved, and no other error ended the run.
        """
        self._summary.interrupted()
        try:
            if self._steps > self._saved:
                await asyncio.wait_for(self._save(), SAVE_SECONDS if ending else None)
        except (OrlError, TimeoutError) as fault:
            self._summary.end({"error": str(fault), **ending})
            if not ending:
                raise
            logger.error("the last checkpoint is that of step %d: %s", self._saved, fault)
        else:
            self._summary.end(ending)

    def _summary_of(self) -> Summary:
        course, numbers = self._course, {name: version(name) for name in PACKAGES}
        return structs.replace(
            Summary.of(self._run.config, metrics_log.read(self._history)),
            steps=self._steps,
            resumed_from=course.saved.path if course.saved else UNSET,
            resumed_step=course.done if course.saved else UNSET,
            seconds_total=round(time.monotonic() - self._run.started, 1),
            versions={"python": platform.python_version(), **numbers},
            **self._run.facts,
        )


def difference_of(rows: Sequence[Row], trained: Trained) -> float | None:
    """Return the mean absolute difference between the logprobs of training and of sampling; None if it is not known."""
    sizes: list[float] = []
    for row, output in zip(rows, trained.output.loss_fn_outputs, strict=False):
        if "logprobs" not in output:
            return None
        own = output["logprobs"].data[len(row.datum.prompt) - 1 :]
        pairs = zip(own, row.datum.logprobs, row.datum.loss_mask, strict=True)
        sizes += [abs(now - then) for now, then, trains in pairs if trains]
    return fmean(sizes) if sizes else None
