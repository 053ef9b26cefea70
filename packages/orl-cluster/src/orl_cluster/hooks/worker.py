"""State inside a trainer's worker: tokenizer, journal and breaker of a run, clients of a loop, kept rollouts.

A trainer runs several event loops in one process and kills it without warning. So each loop has clients of its own,
and none needs to be closed. The module reads the trainer's arguments by the names that trainers share, and knows
nothing of its samples.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from msgspec import Struct, field, structs
from orl_core import ConfigError, OrlError, RunAborted, RunConfig, boundary, decode_config, load_config
from orl_rollout import Engine, OpenRewardClient, Outcome, Runtime, SglangEngine, Timeouts
from orl_rollout.functions import find_modules_in
from orl_rollout.loop.clock import Pause
from orl_rollout.run_folder.checkpoint import checkpoint_in
from orl_rollout.run_folder.config_file import name_of
from orl_rollout.run_folder.turn_count import CountingEngine, TurnCount
from orl_rollout.runtime.stack import SharedState

from orl_cluster.context import CONTEXT, with_context

KEEP_SECONDS = 3600.0  # an update of the weights and an evaluation take less


class RunState:
    """A run in this process. `ended` says why it is over.

    `batches` counts the training batches that were logged, after those of the checkpoint of a resumed run. `first` is
    the number of the first batch of this process, from 0; it is above 0 where the run was resumed. `dropped` counts the
    latest groups in a row that the dynamic filter dropped, `turns` the answered turns and open rollouts.
    """

    def __init__(self, folder: str) -> None:
        self.ended = ""
        self.batches = 0
        self.first: int | None = None
        self.dropped = 0
        self.turns = TurnCount(folder)
        self._training = False
        self._worker: SharedState | None = None

    @property
    def stripped(self) -> bool:
        """Tell whether a rollout becomes a list of samples."""
        return self._worker is not None and bool(self._worker.config.several_rows)

    def worker(self, args: Any) -> SharedState:
        """Return the machinery, opened at the first call.

        Raises:
            ConfigError: the configuration or the checkpoint cannot be used.
        """
        with _one_at_a_time:
            if self._worker is None:
                folder = getattr(args, "orl_folder", "")
                if modules := getattr(args, "orl_working_folder", ""):
                    find_modules_in(modules)
                self._worker = SharedState(config_of(args), args.hf_checkpoint, folder, args.n_samples_per_prompt)
                self.batches = self.batches or batches_before(args)
                atexit.register(self._worker.close)
            return self._worker

    def step(self, batch: int | None, *, evaluation: bool) -> int:
        """Return the step, from 1, of the trainer's batch `batch`, from 0; None where the trainer does not say.

        Then it is the step after the latest one that was logged. An evaluation belongs to the batch before it; trainers
        give the evaluation before all training a batch's number too. A process that evaluates may play no training and
        log it.
        """
        if batch is None:
            return self.batches + (not evaluation)
        self._training = self._training or not evaluation or self.first is not None
        return batch + self._training


class KeptRollout:
    """A rollout that the trainer may put aside (`--partial-rollout`), which keeps its session until it continues.

    It begins now, and `play` is handed the pause of its Clock. What was sampled before stays as it was (law L1). It
    waits for the trainer at most for KEEP_SECONDS. A trainer that asks later, or in another process, gets the task
    played from its beginning.
    """

    def __init__(self, play: Callable[[Pause], Awaitable[Outcome]]) -> None:
        self._waits = asyncio.Event()
        self._goes_on = asyncio.Event()
        self._playing = asyncio.ensure_future(play(self._pause))

    @property
    def ended(self) -> bool:
        """Tell whether it has ended."""
        return self._playing.done()

    async def proceed(self) -> Outcome | None:
        """Play on, to the end or to the trainer's next abort; None if it waits for the trainer again."""
        self._waits.clear()
        self._goes_on.set()
        waiting = asyncio.ensure_future(self._waits.wait())
        try:
            await asyncio.wait({self._playing, waiting}, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            await self.cancel()
            raise
        finally:
            waiting.cancel()
        return self._playing.result() if self._playing.done() else None

    async def cancel(self) -> None:
        """End the rollout, and return when its session is closed."""
        self._playing.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.gather(self._playing, return_exceptions=True)

    async def _pause(self) -> bool:
        self._goes_on.clear()
        self._waits.set()
        try:
            async with asyncio.timeout(KEEP_SECONDS):
                await self._goes_on.wait()
        except TimeoutError:
            return False
        return True


class LoopClients(Struct, frozen=True):
    """Clients of one event loop, the runtime that uses them, and the rollouts that the trainer has put aside."""

    worker: SharedState
    engine: Engine
    runtime: Runtime
    closing: AsyncExitStack
    kept: dict[str, KeptRollout] = field(default_factory=dict[str, KeptRollout])


_runs: dict[str, RunState] = {}  # by the run's folder
_one_at_a_time = threading.Lock()  # two loops begin on two threads
_clients: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[tuple[str, bool], asyncio.Task[LoopClients]]] = (
    WeakKeyDictionary()
)


def run_of(args: Any) -> RunState:
    """Return the run of the trainer's arguments, or of a copy of them. A process without a folder has one run."""
    folder = getattr(args, "orl_folder", "")
    return _runs.setdefault(folder, RunState(folder))


def run_in_progress(args: Any) -> RunState:
    """Return the run."""
    run = run_of(args)
    if run.ended:
        raise RunAborted(run.ended)
    return run


async def clients_of(args: Any, payload: Mapping[str, Any], *, evaluation: bool) -> LoopClients:
    """Return the clients of the current event loop, opened by the first rollout that asks.

    An evaluation has clients of its own: its context may be longer, and its engines may have another router. `payload`
    is sent with every request to the engines.
    """
    running = asyncio.get_running_loop()
    openings = _clients.setdefault(running, {})
    key = (f"http://{args.sglang_router_ip}:{args.sglang_router_port}", evaluation)
    if key not in openings:
        openings[key] = running.create_task(_open(args, *key, payload))
    return await asyncio.shield(openings[key])


async def _open(args: Any, url: str, evaluation: bool, payload: Mapping[str, Any]) -> LoopClients:
    with boundary(OrlError, "starting rollouts"):
        worker = run_of(args).worker(args)
        context = context_tokens(args, evaluation=evaluation) or worker.config.rollout.context_tokens or CONTEXT
        closing = AsyncExitStack()
        client = await closing.enter_async_context(OpenRewardClient(worker.config, worker.open_sessions))
        timeouts = Timeouts(retry=worker.config.rollout.patience)
        engine = SglangEngine(url, context_tokens=context, payload=payload, timeouts=timeouts)
        engine = await closing.enter_async_context(engine)
        return LoopClients(worker, CountingEngine(engine, run_of(args).turns), worker.runtime(client), closing)


async def aclose() -> None:
    """Close the clients of the current event loop. A trainer that kills its process need not call it."""
    for opening in _clients.pop(asyncio.get_running_loop(), {}).values():
        with suppress(OrlError):  # clients that never opened need no close
            clients = await opening
            for kept in clients.kept.values():
                await kept.cancel()
            await clients.closing.aclose()


def config_of(args: Any) -> RunConfig:
    """Return the configuration in the trainer's arguments, or in the file that they or the environment name.

    Raises:
        ConfigError: there is none, or it is wrong.
    """
    setting = getattr(args, "orl_config", None)
    if setting is not None and not isinstance(setting, str):
        return decode_config(setting, "orl_config")
    path = setting or os.environ.get("ORL_CONFIG") or os.environ.get("TRAIN_CONFIG")
    if not path:
        raise ConfigError("no configuration: pass `orl_config` in --custom-config-path, or set ORL_CONFIG")
    config = load_config(path)
    config = structs.replace(config, openreward_run_name=name_of(config))
    return with_context(config, getattr(args, "context_parallel_size", None) or 1)


def batches_before(args: Any) -> int:
    """Return the training batches behind the checkpoint that the trainer begins with."""
    start = getattr(args, "start_rollout_id", None)
    if start is not None:
        return start
    load = getattr(args, "load", None)
    with suppress(ConfigError):  # of a note that cannot be read
        checkpoint = checkpoint_in(Path(load)) if load else None
        return (checkpoint.step or 0) if checkpoint and checkpoint.format != "hf" else 0
    return 0


def context_tokens(args: Any, *, evaluation: bool) -> int | None:
    """Return the most ids of prompt and response together, as the trainer's arguments say."""
    name = "eval_max_context_len" if evaluation else "rollout_max_context_len"
    return getattr(args, name, None) or getattr(args, "rollout_max_context_len", None)
