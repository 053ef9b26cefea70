"""Rollouts for TRL: the same loop, sessions, configuration and reward as everywhere, on an event loop of its own.

TRL calls `__call__` (its `rollout_func`) on the main thread with a batch's task keys, copies of a group adjacent, and
wants one row for each, in that order. All are played at once on the loop's thread, while this thread serves the engine,
which is the model itself (`engine`) or an SGLang (`served_engine`).

A row is a datum as it is (law L1); those of a rollout after its first one join later (`several_rows`). The sampled
logprobs correct the loss for the difference between engine and trainer (`importance`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import AbstractAsyncContextManager, ExitStack
from typing import Any, Self

from orl_core.task import Task
from orl_rollout.edge import interrupt
from orl_rollout.results.metrics import stats_of, training_metrics
from orl_rollout.results.outcome import Outcome
from orl_rollout.training.play import Batch, Player, play

from orl_trl.engine.batch_engine import BatchEngine
from orl_trl.engine.loop_thread import JOIN_SECONDS, STOP_SECONDS, LoopThread
from orl_trl.run_plan.training_plan import TrainingPlan


class Rollouts:
    """Plays batches for a trainer. A context manager; the player is opened and closed on the loop's own thread.

    `outcomes`, `compared` (metrics of group rewards), `started` and `seconds` are those of the latest training batch,
    `step` its number, from 1. `engine` may be read.
    """

    def __init__(
        self,
        plan: TrainingPlan,
        engine: BatchEngine,
        open_player: Callable[[], AbstractAsyncContextManager[Player]],
    ) -> None:
        self.step = 0
        self.outcomes: Sequence[Outcome] = []
        self.compared: dict[str, float] = {}
        self.started = self.seconds = 0.0
        self.plan = plan
        self.engine = engine
        self._open_player = open_player
        self._thread = LoopThread()
        self._closing = asyncio.Event()
        self._playing = asyncio.Lock()

    def __enter__(self) -> Self:
        opened: Future[Player] = Future()
        with ExitStack() as opening:
            opening.enter_context(self._thread)
            self._life = self._thread.submit(self._live(opened))
            self._life.add_done_callback(lambda life: None if opened.done() else _pass_on(life, opened))
            self._player = interrupt.result_of(opened)
            opening.pop_all()
        return self

    def __exit__(self, *exc: object) -> None:
        try:
            self._thread.submit(self._close())
            ends = time.monotonic() + STOP_SECONDS
            while not self._life.done() and time.monotonic() < ends and interrupt.count() < 2:
                wait((self._life,), JOIN_SECONDS)
            if self._life.done():
                self._life.result()
        finally:
            self._thread.__exit__(*exc)

    def __call__(self, prompts: Sequence[str], trainer: object) -> dict[str, list[Any]]:
        """Play one training batch: `prompts` are task keys, one row each; columns as `columns_of` has them.

        Raises:
            RunAborted: too many rollouts end in ERROR.
        """
        self.started = time.monotonic()
        self.step += 1
        tasks = [self.plan.tasks[key] for key in prompts]
        self.outcomes = self._play(tasks, f"train/{self.step}", self.plan.sampling, evaluation=False)
        if self.plan.compare is not None:
            comparing = self._thread.submit(self.plan.compare(self.outcomes))
            try:
                self.outcomes, self.compared = interrupt.result_of(comparing)
            finally:
                comparing.cancel()
        self.seconds = time.monotonic() - self.started
        return columns_of(self.outcomes)

    def reward(
        self, *, reward: list[float | None], log_metric: Callable[[str, float], None], **_: object
    ) -> list[float | None]:
        """Return the rewards of the rollouts, as TRL's reward function. Metrics join TRL's own, for W&B."""
        for name, value in (training_metrics(map(stats_of, self.outcomes)) | self.compared).items():
            log_metric(name, value)
        return reward

    def evaluate(self) -> list[Outcome]:
        """Play the held-out tasks with the weights as they are.

        Raises:
            RunAborted: too many rollouts end in ERROR.
        """
        return self._play(self.plan.held_out, f"eval/{self.step}", self.plan.eval_sampling, evaluation=True)

    def _play(
        self, tasks: Sequence[Task], name: str, sampling: Mapping[str, Any], *, evaluation: bool
    ) -> list[Outcome]:
        """Play on the loop's thread and serve the engine on this one. A signal here cancels the rollouts there."""
        batch = Batch(
            tasks=tasks,
            samples=self.plan.eval_samples if evaluation else 1,
            name=name,
            seed=self.plan.seed,
            sampling=sampling,
            step=self.step,
            evaluation=evaluation,
            concurrency=self.plan.concurrency,
        )
        trained = self.step if evaluation else self.step - 1
        with self.engine.batch(str(trained)):
            playing = self._thread.submit(self._play_all(batch))
            try:
                return self.engine.serve(until=playing)
            finally:
                playing.cancel()

    async def _play_all(self, batch: Batch) -> list[Outcome]:
        async with self._playing:
            return await play(batch, self._player, self._client, lambda outcome: outcome)

    async def _live(self, opened: Future[Player]) -> None:
        """Keep the player open until the last batch, finished or cancelled, has let go of it."""
        async with self.engine.client() as self._client, self._open_player() as player:
            opened.set_result(player)
            await self._closing.wait()
            async with self._playing:
                pass

    async def _close(self) -> None:
        self._closing.set()


def _pass_on(life: Future[None], opened: Future[Player]) -> None:
    """Raise in the thread that waits for the player: it could not be opened."""
    fault = None if life.cancelled() else life.exception()
    opened.set_exception(fault or RuntimeError("the player was closed before it was opened"))


def columns_of(outcomes: Sequence[Outcome]) -> dict[str, list[Any]]:
    """TRL's columns, one row for each outcome.

    `prompt_ids`, `completion_ids`, `logprobs` and `env_mask` (the loss mask) are the first datum's; `reward` (None
    if the rollout does not train) reaches `Rollouts.reward`. A rollout that the engine never answered, or whose text
    echoes a secret (`log_completions` would write it down), gives the smallest row that TRL can hold: two ids, masked.
    TRL leaves rows without a reward out of their group's mean and deviation and gives them the advantage 0; their masks
    are all 0, so they add nothing to its token counts either.
    """
    columns: dict[str, list[Any]] = {
        name: [] for name in ("prompt_ids", "completion_ids", "logprobs", "env_mask", "reward")
    }
    for outcome in outcomes:
        if outcome.datums:
            datum = outcome.datums[0]
            reward = outcome.reward if outcome.trains else None
            row = (datum.prompt, datum.response, datum.logprobs, datum.loss_mask, reward)
        else:
            row = ((0,), (0,), (0.0,), (0,), None)
        for column, value in zip(columns.values(), row, strict=True):
            column.append(list(value) if isinstance(value, tuple) else value)
    return columns
