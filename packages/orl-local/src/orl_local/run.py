"""One run on this machine: the Course, with its weights in this process or in a child.

If the model itself is the engine, torch has the main thread, and the Course a loop on a thread of its own. With SGLang
or vLLM the Course has the main thread, and torch a process of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import CancelledError
from contextlib import AsyncExitStack, contextmanager, suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from msgspec import structs
from orl_rollout.edge import interrupt
from orl_rollout.engine_connection import Timeouts
from orl_rollout.logs import say
from orl_rollout.loop.engine import Engine
from orl_rollout.results.outcome import Outcome
from orl_rollout.run_folder.contract import Run
from orl_rollout.run_folder.tracking import Report, reporting
from orl_rollout.runtime.runtime import RolloutRequest
from orl_rollout.training.course import Course, OpenPlayer, Record, runtime_of
from orl_rollout.training.play import Player

from orl_local.engine.control import Launch
from orl_local.engine.engine_plan import graph_options
from orl_local.engine.served_engine import Engines, ServedEngine, Server, Worker, started
from orl_local.engine.sglang_control import SglangControl
from orl_local.planning import Planned, check, planned
from orl_local.policy import Here, LocalPolicy, Ranks

PACKAGES = ("torch", "transformers", "peft", "openreward", "orl-core", "orl-rollout", "orl-local")
Drive = Callable[..., Coroutine[Any, Any, None]]  # `_course`, but for its first three arguments


def train(run: Run, open_player: OpenPlayer = runtime_of) -> None:
    """See `orl_local.train`. `open_player` opens the player: that of the run, or a test's."""
    with interrupt.listening():
        plan = planned(run)
        say(str(plan.engine))
        check(plan)
        interrupt.check()
        with reporting(run) as report, interrupt.patient():
            drive = _train_here if plan.engine.engine == "transformers" else _train_beside
            drive(plan, partial(_course, plan, open_player, report))


async def _course(
    plan: Planned,
    open_player: OpenPlayer,
    report: Report,
    policy: LocalPolicy,
    parameters: int,
    gone: asyncio.Future[None] | None = None,
) -> None:
    """Run the Course of an open `policy`. Rollouts end at once when its engine is `gone` for good."""
    run, facts = plan.run, dict[str, Any](model_params=parameters)
    if plan.start:
        say(f"continues {plan.name} after step {plan.start.step}")
        facts |= {"resumed_from": plan.name, "resumed_step": plan.start.step}
    record = Record(run, PACKAGES, facts, report)
    async with open_player(run, plan.name) as player:
        guarded = _Guarded(player, gone) if gone else player
        await Course(run, plan.schedule, policy, guarded, record).run()


def _train_here(plan: Planned, course: Drive) -> None:
    """Serve engine and weights on this thread while the Course runs on another."""
    from orl_local.engine.in_process_engine import InProcessEngine, loop_thread
    from orl_local.engine.lora import base_of
    from orl_local.rank import Rank

    rank = Rank(plan, interrupt.check)
    parameters = rank.place()
    interrupt.check()
    engine = InProcessEngine(base_of(rank.model))
    policy = LocalPolicy(Here(rank, engine), engine)
    with loop_thread() as submit, suppress(CancelledError):
        engine.serve(until=submit(interrupt.cancelled(course(policy, parameters))), check=_second_signal)
    interrupt.check()


def _second_signal() -> None:
    """End the service at a second signal. At the first one the Course ends, and saves what there is."""
    if interrupt.count() > 1:
        interrupt.check()


def _train_beside(plan: Planned, course: Drive) -> None:
    """Run the Course on this thread, with the weights in a child, next to an engine."""

    async def train_now() -> None:
        # The child reads once it has imported torch: what is sent must fit into the pipe.
        without_tasks = structs.replace(plan, schedule=structs.replace(plan.schedule, tasks=(), held_out=()))
        async with AsyncExitStack() as opening:
            ranks = await opening.enter_async_context(Ranks(plan.ranks, sharded=plan.sharded))
            senders = {
                gpu: ranks if plan.sharded else ranks.children[gpu if gpu < plan.ranks else 0]
                for gpu in plan.engine.gpus[:: plan.engine.each]
            }
            engines = Engines(
                {opening.enter_context(open_engine(plan, rank, gpu)): rank for gpu, rank in senders.items()}
            )
            await asyncio.gather(opening.enter_async_context(engines), ranks.begin(without_tasks))
            policy = LocalPolicy(ranks, engines, ahead=plan.schedule.ahead)
            await course(policy, await ranks.call("place"), engines.gone)

    interrupt.run(train_now())


@contextmanager
def open_engine(plan: Planned, rank: Worker, gpu: int) -> Generator[ServedEngine]:
    """Start an engine from `gpu` on, if it is not at an address, and yield its engine, which is to be entered.

    The memory of the GPU that it takes is a share of what is free when it starts, so the rank loads the model on
    the CPU before. It does not start with a longer context than the model was made for.
    """
    run, trainer, options = plan.run, plan.schedule.trainer, plan.engine.options
    text = plan.described.get("text_config") or plan.described
    context = run.config.context_tokens
    context = min(context, text.get("max_position_embeddings") or context)
    with TemporaryDirectory(prefix="weights-", dir=run.folder.absolute(), ignore_cleanup_errors=True) as folder:
        if plan.engine.url:
            patience = Timeouts(retry=run.config.rollout.patience)
            server = Server(url=plan.engine.url, context_tokens=context, folder=Path(folder), timeouts=patience)
            yield ServedEngine(rank, server)
            return
        engines = len(plan.engine.gpus) // plan.engine.each
        rollouts = -(-(trainer.rollout_batch_size or 1) * plan.schedule.group_size // engines)
        control = plan.engine.control
        graphs = graph_options(rollouts, options) if control is SglangControl else ()
        launch = Launch(
            control=control,
            model=plan.base,
            context_tokens=context,
            seed=trainer.seed,
            gpu=gpu,
            gpus=plan.engine.each,
            share=plan.engine.share,
            memory_saver=plan.releases
            and (control is not SglangControl or find_spec("torch_memory_saver") is not None),
            extra=(*graphs, *options),
        )
        with started(run, launch, Path(folder), rank) as engine:
            yield engine


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
            with suppress(asyncio.CancelledError):
                await asyncio.wait({playing})
        return playing.result()
