"""One run on this machine: the Course, with its weights in this process or in a child.

If the model itself is the engine, torch has the main thread, and the Course a loop on a thread of its own. With SGLang
the Course has the main thread, and torch a process of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from concurrent.futures import CancelledError
from contextlib import AsyncExitStack, suppress
from typing import Any, TypeAlias

from orl_core.errors import ConfigError, OrlError
from orl_rollout.edge import interrupt
from orl_rollout.logs import say
from orl_rollout.loop.engine import Engine
from orl_rollout.results.outcome import Outcome
from orl_rollout.run_folder.contract import Run
from orl_rollout.run_folder.tracking import Report, reporting
from orl_rollout.runtime.runtime import RolloutRequest
from orl_rollout.training.course import Course, OpenPlayer, Record, runtime_of
from orl_rollout.training.play import Player

from orl_local.engine.loop_thread import LoopThread
from orl_local.engine.open_engine import open_engine, unready
from orl_local.options import own_options
from orl_local.planning import Planned, check_memory, planned
from orl_local.policy import Child, Here, LocalPolicy
from orl_local.rank_job import Job, job_of

PACKAGES = ("torch", "transformers", "peft", "openreward", "orl-core", "orl-rollout", "orl-local")
Gone: TypeAlias = asyncio.Future[None] | None


def train(run: Run, open_player: OpenPlayer | None = None) -> None:
    """See `orl_local.train`. `open_player` opens the player: that of the run, or a test's."""
    with interrupt.listening():
        plan = planned(run)
        say(str(plan.engine))
        if fault := unready(plan.engine.url):
            raise ConfigError(fault)
        check_memory(run, plan)
        interrupt.check()
        job = job_of(
            run.config, plan.settings, plan.order, plan.start, own_options(run.config.trainer).save_total_limit
        )
        with reporting(run) as report, interrupt.patient():
            drive = _train_here if plan.engine.engine == "transformers" else _train_beside
            drive(run, plan, job, _Open(run, open_player or runtime_of, report))


class _Open:
    """What both ways of a run share: its player, its files, its reports."""

    def __init__(self, run: Run, open_player: OpenPlayer, report: Report) -> None:
        self.run, self.open_player, self.report = run, open_player, report

    async def course(self, plan: Planned, job: Job, policy: LocalPolicy, facts: Mapping[str, Any], gone: Gone) -> None:
        """Run the Course of an open `policy`."""
        start = plan.start
        resumed = {"resumed_from": str(start.folder), "resumed_step": start.step} if start else {}
        if start:
            say(f"continues {start.folder} after step {start.step}")
        record = Record(self.run, PACKAGES, lambda: {**facts, **resumed})
        async with self.open_player(self.run, job.name) as player:
            guarded = player if gone is None else _Guarded(player, gone)
            await Course(self.run, plan.schedule, policy, guarded, record, self.report).run()


def _train_here(run: Run, plan: Planned, job: Job, opened: _Open) -> None:
    """Serve engine and weights on this thread while the Course runs on another."""
    from orl_local.engine.in_process_engine import InProcessEngine
    from orl_local.rank import Rank

    rank = Rank(job, interrupt.check)
    parameters = rank.place()
    interrupt.check()
    engine = InProcessEngine(rank.served)
    policy = LocalPolicy(Here(rank, engine), engine)
    with LoopThread() as loop:
        course = opened.course(plan, job, policy, {"model_params": parameters}, None)
        with suppress(CancelledError):
            engine.serve(until=loop.submit(interrupt.cancelled(course)), check=_second_signal)
    interrupt.check()


def _second_signal() -> None:
    """End the service at a second signal. At the first one the Course ends, and saves what there is."""
    if interrupt.count() > 1:
        interrupt.check()


def _train_beside(run: Run, plan: Planned, job: Job, opened: _Open) -> None:
    """Run the Course on this thread, with the weights in a child, next to an SGLang."""

    async def train_now() -> None:
        async with AsyncExitStack() as opening:
            child = await opening.enter_async_context(Child(job))
            served = opening.enter_context(
                open_engine(run, plan.engine, plan.base, plan.described, child, releases=plan.releases)
            )
            engine, _ = await asyncio.gather(opening.enter_async_context(served), child.begin())
            parameters = await child.call("place")
            policy = LocalPolicy(child, engine)
            await opened.course(plan, job, policy, {"model_params": parameters}, engine.gone)

    interrupt.run(train_now())


class _Guarded:
    """A player whose rollouts end at once when the engine is gone for good: `gone` has the error."""

    def __init__(self, player: Player, gone: asyncio.Future[None]) -> None:
        self._player, self._gone = player, gone

    async def play(self, request: RolloutRequest, engine: Engine, /) -> Outcome:
        """Play one rollout.

        Raises:
            OrlError: the run must end.
        """
        playing = asyncio.create_task(self._player.play(request, engine))
        try:
            await asyncio.wait({playing, self._gone}, return_when=asyncio.FIRST_COMPLETED)
            if not playing.done():
                self._gone.result()
        finally:
            playing.cancel()
            with suppress(asyncio.CancelledError, OrlError):
                await asyncio.wait({playing})
        return playing.result()
