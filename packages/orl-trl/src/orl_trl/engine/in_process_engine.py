"""The in-process engine: requests come from the rollouts' event loop, torch runs on the thread that calls `serve`.

It knows futures and queues, and neither rollouts nor trainers; `sampler` knows torch. One model is never used from
two threads. While a batch is sampled, new requests gather for the next batch.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Generator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, contextmanager, nullcontext, suppress
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from msgspec import Struct
from orl_core.errors import EngineError, boundary
from orl_core.trajectory import Generation
from orl_rollout.edge import interrupt
from transformers import PreTrainedModel

from orl_trl.engine.sampler import SampledTokens, SamplingRequest, sample

T = TypeVar("T")

WINDOW_SECONDS = 0.004  # without a new request, after which a batch is complete
BATCH_ROWS = 512

# What the loop sets for engines that would trim or decode: this one does neither.
_IGNORED = frozenset({"no_stop_trim", "skip_special_tokens"})


class _Waiting(Struct, frozen=True, kw_only=True):
    """A request on its way, and the future of its answer."""

    request: SamplingRequest
    answer: asyncio.Future[SampledTokens]


class InProcessEngine:
    """`orl_rollout.loop.engine.Engine` over a transformers model, whose weights are always those of training.

    `weight_version` goes into every Generation. `metrics` stay empty.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self._model = model
        self._inbox: SimpleQueue[_Waiting | None] = SimpleQueue()  # None: look whether there is still work to wait for
        self.weight_version = ""
        self.metrics: dict[str, float] = {}

    def client(self) -> AbstractAsyncContextManager[InProcessEngine]:
        """Return itself: requests go through this process."""
        return nullcontext(self)

    @contextmanager
    def batch(self, version: str) -> Generator[None]:
        """Let the answers in the block have the weight version `version`."""
        self.weight_version = version
        yield

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

    def serve(self, until: Future[T]) -> T:
        """Answer requests on this thread until `until` is done; its result.

        Raises:
            Interrupted: a signal came.
            Exception: whatever `until` raises.
        """
        until.add_done_callback(lambda _: self._inbox.put(None))
        with interrupt.notified(lambda: self._inbox.put(None)):
            while not until.done():
                interrupt.check()
                batch = [waiting for waiting in self._gather() if not waiting.answer.cancelled()]
                if batch:
                    self._answer(batch)
        return until.result()

    def _gather(self) -> list[_Waiting]:
        """Wait for a request, then for those that come close behind it."""
        batch: list[_Waiting] = []
        waiting = self._inbox.get()
        with suppress(Empty):
            while waiting is not None:
                batch.append(waiting)
                if len(batch) == BATCH_ROWS:
                    break
                waiting = self._inbox.get(timeout=WINDOW_SECONDS)
        return batch

    def _answer(self, batch: Sequence[_Waiting]) -> None:
        answers: Sequence[SampledTokens | EngineError]
        try:
            with boundary(EngineError, f"sampling a batch of {len(batch)}"):
                answers = sample(self._model, [waiting.request for waiting in batch])
        except EngineError as fault:
            answers = [EngineError(str(fault)) for _ in batch]
        for waiting, answer in zip(batch, answers, strict=True):
            waiting.answer.get_loop().call_soon_threadsafe(_settle, waiting.answer, answer)


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
