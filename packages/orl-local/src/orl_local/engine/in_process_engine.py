"""The in-process engine: requests come from the rollouts' event loop, torch runs on the thread that calls `serve`.

It knows futures and queues, and neither rollouts nor trainers; `sampler` knows torch. One model is never used from
two threads. While a batch is sampled, new requests gather for the next batch.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from msgspec import Struct
from orl_core.errors import EngineError, OrlError, boundary
from orl_core.trajectory import Generation
from orl_rollout.edge import interrupt
from transformers import PreTrainedModel

from orl_local.engine.sampler import SampledTokens, SamplingRequest, sample

T = TypeVar("T")

WINDOW_SECONDS = 0.004  # without a new request, after which a batch is complete
BATCH_ROWS = 512

# What the loop sets for engines that would trim or decode: this one does neither.
_IGNORED = frozenset({"no_stop_trim", "skip_special_tokens"})


class _Waiting(Struct, frozen=True, kw_only=True):
    """A request on its way, and the future of its answer."""

    request: SamplingRequest
    answer: asyncio.Future[SampledTokens]


class _Job(Struct, frozen=True):
    """Work for the thread that serves, and the future of its result."""

    work: Callable[[], Any]
    done: Future[Any]


class InProcessEngine:
    """`orl_rollout.loop.engine.Engine` over a transformers model, whose weights are always those of training.

    `weight_version` goes into every Generation.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self._model = model
        # None: look whether there is still work to wait for
        self._inbox: SimpleQueue[_Waiting | _Job | None] = SimpleQueue()
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

    async def run(self, work: Callable[[], T]) -> T:
        """Return the result of `work`, which the thread that serves does between two batches."""
        done: Future[T] = Future()
        done.set_running_or_notify_cancel()  # who is cancelled cannot cancel the work
        self._inbox.put(_Job(work, done))
        return await asyncio.wrap_future(done)

    async def generate(self, ids: Sequence[int], sampling: Mapping[str, Any], *, key: str) -> Generation:
        """Sample one continuation; waits until a `serve` on another thread gets to it.

        Raises:
            EngineError: a sampling parameter is unknown here, or the batch that held this request failed.
        """
        started = time.monotonic()
        answer = asyncio.get_running_loop().create_future()
        waiting = _Waiting(request=_request(ids, sampling), answer=answer)
        self._inbox.put(waiting)
        sampled = await answer
        return Generation(
            token_ids=sampled.token_ids,
            logprobs=sampled.logprobs,
            finish_reason="stop" if sampled.stopped else "length",
            weight_version=self.weight_version,
            seconds=time.monotonic() - started,
        )

    def serve(self, until: Future[T], check: Callable[[], None] = interrupt.check) -> T:
        """Answer requests and do jobs on this thread until `until` is done; its result.

        `check` is called before each batch. What it raises ends the service.

        Raises:
            Interrupted: a signal came.
            Exception: whatever `until` raises.
        """
        until.add_done_callback(lambda _: self._inbox.put(None))
        with interrupt.notified(lambda: self._inbox.put(None)):
            while not until.done():
                check()
                batch, job = self._gather()
                batch = [waiting for waiting in batch if not waiting.answer.cancelled()]
                if batch:
                    self._answer(batch)
                if job is not None:
                    _do(job)
        return until.result()

    def _gather(self) -> tuple[list[_Waiting], _Job | None]:
        """Wait for a request, then for those that come close behind it. A job ends the wait."""
        batch: list[_Waiting] = []
        waiting = self._inbox.get()
        with suppress(Empty):
            while isinstance(waiting, _Waiting):
                batch.append(waiting)
                if len(batch) == BATCH_ROWS:
                    return batch, None
                waiting = self._inbox.get(timeout=WINDOW_SECONDS)
        return batch, waiting if isinstance(waiting, _Job) else None

    def _answer(self, batch: Sequence[_Waiting]) -> None:
        answers: Sequence[SampledTokens | EngineError]
        try:
            with boundary(EngineError, f"sampling a batch of {len(batch)}"):
                answers = sample(self._model, [waiting.request for waiting in batch])
        except EngineError as fault:
            answers = [EngineError(str(fault)) for _ in batch]
        except interrupt.Interrupted:  # whoever asked is being cancelled, and must not take it for a fault before
            return
        for waiting, answer in zip(batch, answers, strict=True):
            waiting.answer.get_loop().call_soon_threadsafe(_settle, waiting.answer, answer)


def _do(job: _Job) -> None:
    try:
        with boundary(OrlError, "a bug in orl"):
            job.done.set_result(job.work())
    except OrlError as fault:
        job.done.set_exception(fault)
    except interrupt.Interrupted:  # an event loop ends by one of these
        job.done.set_exception(CancelledError())


def _settle(future: asyncio.Future[SampledTokens], answer: SampledTokens | EngineError) -> None:
    if isinstance(answer, EngineError) and not future.done():
        future.set_exception(answer)
    elif isinstance(answer, SampledTokens) and not future.done():
        future.set_result(answer)


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
