"""The in-process engine: requests come from the rollouts' event loop, torch runs on the thread that calls `serve`.

It knows neither rollouts nor trainers; `sampler` knows torch. One model is never used from two threads. While a batch
is sampled, new requests gather for the next batch. Clients that live on the loop are opened and used there only.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Generator, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import contextmanager
from functools import partial
from queue import SimpleQueue
from typing import Any, TypeVar

from msgspec import structs
from orl_core.errors import EngineError, OrlError, boundary
from orl_core.trajectory import Generation
from orl_rollout.edge import interrupt
from orl_rollout.loop.engine import Engine
from transformers import PreTrainedModel

from orl_local.engine.local_model import load_model, on_device
from orl_local.engine.sampler import SamplingRequest, sample

T = TypeVar("T")
Submit = Callable[[Coroutine[Any, Any, T]], Future[T]]

WINDOW_SECONDS = 0.004  # without a new request, after which a batch is complete
BATCH_ROWS = 512
STOP_SECONDS = 30.0  # for the loop to cancel what still runs, and to end
JOIN_SECONDS = 0.1  # between two looks for a second signal

# What the loop sets for engines that would trim or decode: this one does neither.
_IGNORED = frozenset({"no_stop_trim", "skip_special_tokens"})


class InProcessEngine:
    """`orl_rollout.loop.engine.Engine` over a transformers model, whose weights are always those of training.

    `weight_version` goes into every Generation. Requests come from one event loop.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self._model = model
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()  # None: look whether to continue
        self._waiting: list[tuple[SamplingRequest, asyncio.Future[Generation]]] = []
        self._answering: asyncio.Task[None] | None = None
        self.weight_version = ""

    def client(self) -> InProcessEngine:
        """Return itself: requests go through this process."""
        return self

    async def publish(self, version: str) -> dict[str, float]:
        """Name the weights `version` from now on. The engine has them already."""
        self.weight_version = version
        return {}

    async def release(self) -> None:
        """Do nothing: the engine has no memory of its own."""

    async def run(self, work: Callable[[], T], what: str = "a bug in orl") -> T:
        """Return the result of `work`, done between two batches on the thread that serves. `what` as in `boundary`."""
        done: Future[T] = Future()
        done.set_running_or_notify_cancel()  # who is cancelled cannot cancel the work

        def job() -> None:
            try:
                with boundary(OrlError, what):
                    done.set_result(work())
            except OrlError as fault:
                done.set_exception(fault)
            except interrupt.Interrupted:  # an event loop ends by one of these
                done.set_exception(CancelledError())

        self._jobs.put(job)
        return await asyncio.wrap_future(done)

    async def generate(self, ids: Sequence[int], sampling: Mapping[str, Any], *, key: str) -> Generation:
        """Sample one continuation; waits until a `serve` on another thread gets to it.

        Raises:
            EngineError: a sampling parameter is unknown here, or the batch that held this request failed.
        """
        started = time.monotonic()
        answer: asyncio.Future[Generation] = asyncio.get_running_loop().create_future()
        self._waiting.append((_request(ids, sampling), answer))
        if self._answering is None or self._answering.done():
            self._answering = asyncio.create_task(self._answer())
        sampled = await answer
        return structs.replace(sampled, weight_version=self.weight_version, seconds=time.monotonic() - started)

    async def _answer(self) -> None:
        """Sample batch after batch while requests wait. A signal ends it: whoever asked is being cancelled."""
        while self._waiting:
            seen = 0
            while seen < len(self._waiting) < BATCH_ROWS:
                seen = len(self._waiting)
                await asyncio.sleep(WINDOW_SECONDS)
            batch, self._waiting = self._waiting[:BATCH_ROWS], self._waiting[BATCH_ROWS:]
            batch = [(request, answer) for request, answer in batch if not answer.cancelled()]
            try:
                sampling = partial(sample, self._model, [request for request, _ in batch])
                answers = await self.run(sampling, f"sampling a batch of {len(batch)}")
            except OrlError as fault:
                for answer in (answer for _, answer in batch if not answer.done()):
                    answer.set_exception(EngineError(str(fault)))
                continue
            for (_, answer), sampled in zip(batch, answers, strict=True):
                if not answer.done():
                    answer.set_result(sampled)

    def serve(self, until: Future[T], check: Callable[[], None] = interrupt.check) -> T:
        """Sample and work on this thread until `until` is done; its result.

        `check` is called before each batch. What it raises ends the service.

        Raises:
            Interrupted: a signal came.
            Exception: whatever `until` raises.
        """
        until.add_done_callback(lambda _: self._jobs.put(None))
        with interrupt.notified(lambda: self._jobs.put(None)):
            while not until.done():
                check()
                if (job := self._jobs.get()) is not None:
                    job()
        return until.result()


@contextmanager
def loop_thread() -> Generator[Submit[Any]]:
    """Yield what starts a coroutine on the event loop of a daemon thread, for a program whose main thread has torch.

    The end cancels what still runs there, in bounded time. A second signal abandons the thread.
    """
    started: Future[asyncio.AbstractEventLoop] = Future()

    def run() -> None:
        with asyncio.Runner() as runner:
            started.set_result(runner.get_loop())
            runner.get_loop().run_forever()

    thread = threading.Thread(target=run, name="orl-rollouts", daemon=True)
    thread.start()
    loop = started.result()
    try:
        yield lambda coroutine: asyncio.run_coroutine_threadsafe(coroutine, loop)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        ends = time.monotonic() + STOP_SECONDS
        while thread.is_alive() and time.monotonic() < ends and interrupt.count() < 2:
            thread.join(JOIN_SECONDS)


def play_in_process(model: str, play: Callable[[Engine], Coroutine[Any, Any, T]]) -> T:
    """See `orl_local.play_in_process`."""
    engine = InProcessEngine(on_device(load_model(model)).eval())
    with loop_thread() as submit:
        return engine.serve(until=submit(play(engine)))


def _request(ids: Sequence[int], sampling: Mapping[str, Any]) -> SamplingRequest:
    """Make a request of SGLang's sampling parameters; None is the default."""
    options = {name: value for name, value in sampling.items() if name not in _IGNORED and value is not None}
    stops = frozenset(options.pop("stop_token_ids", ()))
    seed = options.pop("sampling_seed", None)
    unknown = options.keys() - {"max_new_tokens", "temperature", "top_p"}
    if unknown:
        raise EngineError(f"the in-process engine has no sampling parameter {', '.join(sorted(unknown))}")
    if not ids or options.get("max_new_tokens", 1) < 1:
        raise EngineError("the in-process engine needs at least one id to continue and room for one more")
    return SamplingRequest(token_ids=tuple(ids), stop_ids=stops, seed=seed, **{"max_new_tokens": 1, **options})
