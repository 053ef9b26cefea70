"""The in-process engine: requests come from the rollouts' event loop, torch runs on the thread that calls `serve`.

It knows neither rollouts nor trainers. One model is never used from two threads. While a batch is sampled, new requests
gather for the next batch. Clients that live on the loop are opened and used there only.

`sample` is torch and transformers' `generate`, no threads and no event loop. A logits processor draws, and keeps the
logprob of what it draws: that of the distribution which sampled, in fp32, before top-p (which SGLang does not
renormalise either). The checkpoint's own generation defaults (penalties, top-k, end-of-sequence ids) are set aside.
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
from random import Random
from typing import Any, TypeVar, cast

import torch
from msgspec import Struct, structs
from orl_core.errors import EngineError, OrlError, boundary
from orl_core.trajectory import Generation
from orl_rollout.edge import interrupt
from orl_rollout.logs import logger_of
from orl_rollout.loop.engine import Engine
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import (
    GenerationConfig,
    LogitsProcessor,
    LogitsProcessorList,
    PreTrainedModel,
    StoppingCriteria,
    StoppingCriteriaList,
    TopPLogitsWarper,
)

from orl_local.engine.local_model import clear_memory, is_out_of_memory, load_model, on_device

logger = logger_of("orl")

BATCH_TOKENS = 65_536  # of padded prompts in one batch: bounds the memory of its prefill, not of what it then samples
T = TypeVar("T")
Submit = Callable[[Coroutine[Any, Any, T]], Future[T]]

WINDOW_SECONDS = 0.004  # without a new request, after which a batch is complete
BATCH_ROWS = 512
STOP_SECONDS = 30.0  # for the loop to cancel what still runs, and to end
JOIN_SECONDS = 0.1  # between two looks for a second signal

# What the loop sets for engines that would trim or decode: this one does neither.
_IGNORED = frozenset({"no_stop_trim", "skip_special_tokens"})


class SamplingRequest(Struct, frozen=True, kw_only=True):
    """One continuation to sample. `temperature` 0 is greedy, with logprobs at temperature 1.

    Equal requests with an equal `seed` draw the same, whatever shares their batch. None draws at random.
    """

    token_ids: tuple[int, ...]
    max_new_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    stop_ids: frozenset[int] = frozenset()
    seed: int | None = None


def sample(model: PreTrainedModel, requests: Sequence[SamplingRequest]) -> list[Generation]:
    """Answer `requests`, in their order; rows of like sampling and like length share a batch.

    An answer ends with a stop id, or has used up its budget.

    A batch that the memory of the device does not hold is halved.
    """
    answers: dict[int, Generation] = {}
    todo = _batches(requests)
    with torch.no_grad(), _neutral(model):
        while todo:
            rows, half = todo.pop(0), 0
            try:
                answers.update(zip(rows, _sample_batch(model, [requests[row] for row in rows]), strict=True))
            except RuntimeError as error:
                half = len(rows) // 2
                if not half or not is_out_of_memory(error):
                    raise
            if half:  # the error, which holds tensors, is gone
                logger.warning("sampling ran out of memory at %d rows, which are halved", len(rows))
                clear_memory()
                todo[:0] = [rows[:half], rows[half:]]
    return [answers[row] for row in range(len(requests))]


def _batches(requests: Sequence[SamplingRequest]) -> list[list[int]]:
    """Return row numbers batch by batch, the shortest prompts first."""

    def kind(row: int) -> tuple[float, float]:
        return requests[row].temperature, requests[row].top_p

    batches: list[list[int]] = []
    for row in sorted(range(len(requests)), key=lambda row: (kind(row), len(requests[row].token_ids))):
        last = batches[-1] if batches else []
        if last and kind(row) == kind(last[0]) and (len(last) + 1) * len(requests[row].token_ids) <= BATCH_TOKENS:
            last.append(row)
        else:
            batches.append([row])
    return batches


@contextmanager
def _neutral(model: PreTrainedModel) -> Generator[None]:
    """Turn dropout off and set the checkpoint's generation defaults aside while the block runs."""
    training, defaults = model.training, model.generation_config
    model.eval()
    model.generation_config = GenerationConfig()
    try:
        yield
    finally:
        model.generation_config = defaults
        model.train(training)


def _sample_batch(model: PreTrainedModel, batch: Sequence[SamplingRequest]) -> list[Generation]:
    width = max(len(request.token_ids) for request in batch)
    ids = [[0] * (width - len(request.token_ids)) + list(request.token_ids) for request in batch]
    mask = [[0] * (width - len(request.token_ids)) + [1] * len(request.token_ids) for request in batch]
    draw = _Draw(batch)
    settings = GenerationConfig(
        max_new_tokens=max(request.max_new_tokens for request in batch),
        pad_token_id=0,
        disable_compile=True,
        do_sample=False,  # `_Draw` has drawn
    )
    sequences = model.generate(  # pyright: ignore[reportCallIssue]  typed as a module's attribute
        input_ids=torch.tensor(ids, device=model.device),
        attention_mask=torch.tensor(mask, device=model.device),
        generation_config=settings,
        logits_processor=LogitsProcessorList([draw]),
        stopping_criteria=StoppingCriteriaList([_Done(batch, width, model.device)]),
    )
    new, logprobs = cast("Tensor", sequences)[:, width:].tolist(), torch.cat(draw.logprobs, dim=1).tolist()
    return [_cut(*row) for row in zip(batch, new, logprobs, strict=True)]


def _cut(request: SamplingRequest, ids: list[int], logprobs: list[float]) -> Generation:
    """Return the ids of a row up to its end; a batch ends with its last row."""
    count = next((index + 1 for index, token in enumerate(ids) if token in request.stop_ids), len(ids))
    count = min(count, request.max_new_tokens)
    reason = "stop" if ids[count - 1] in request.stop_ids else "length"
    return Generation(token_ids=tuple(ids[:count]), logprobs=tuple(logprobs[:count]), finish_reason=reason)


class _Draw(LogitsProcessor):
    """Draws one id for each row, by a random number of the row's own, and leaves nothing else to choose.

    `logprobs` has those of the ids that were drawn, [B, 1] for each step: `generate` would keep the scores of all ids.
    """

    def __init__(self, batch: Sequence[SamplingRequest]) -> None:
        self._rows = [Random(request.seed) for request in batch]  # noqa: S311 - no secret is drawn
        self._temperature, top_p = batch[0].temperature, batch[0].top_p
        self._nucleus: Any = TopPLogitsWarper(top_p) if top_p < 1 else None
        self.logprobs: list[Tensor] = []

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Return scores [B, V] of 0 for the drawn id and -inf for all others; `scores` are logits."""
        logprobs = torch.log_softmax(scores.float() / (self._temperature or 1.0), dim=-1)
        drawn = self._drawn(input_ids, logprobs) if self._temperature else logprobs.argmax(dim=-1, keepdim=True)
        self.logprobs.append(logprobs.gather(1, drawn))
        return torch.full_like(logprobs, -torch.inf).scatter_(1, drawn, 0.0)

    def _drawn(self, input_ids: Tensor, logprobs: Tensor) -> Tensor:
        kept = self._nucleus(input_ids, logprobs) if self._nucleus else logprobs
        cumulative = kept.double().softmax(dim=-1).cumsum(dim=-1)
        below_one = [[row.getrandbits(32) / 2**32] for row in self._rows]
        points = torch.tensor(below_one, dtype=torch.double, device=kept.device) * cumulative[:, -1:]
        return torch.searchsorted(cumulative, points, right=True)


class _Done(StoppingCriteria):
    """Tells which rows are done: each by its own stop ids and its own budget."""

    def __init__(self, batch: Sequence[SamplingRequest], width: int, device: torch.device) -> None:
        stops = [torch.tensor([-1, *request.stop_ids]) for request in batch]
        self._stops = pad_sequence(stops, batch_first=True, padding_value=-1).to(device)
        self._budgets = torch.tensor([request.max_new_tokens for request in batch], device=device)
        self._width = width
        self._done = torch.zeros(len(batch), dtype=torch.bool, device=device)

    def __call__(self, input_ids: Tensor, scores: object, **kwargs: object) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Return a boolean [B]; a row stays done. A signal ends the batch here, between two ids."""
        interrupt.check()
        self._done |= (input_ids[:, -1:] == self._stops).any(dim=1)
        self._done |= self._budgets <= input_ids.shape[1] - self._width
        return self._done


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
