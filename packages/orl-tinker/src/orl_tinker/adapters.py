"""The weights that train on the server: their updates, their samplers and checkpoints.

A server may forget a session: it expires, or its machine restarts. An update whose answer is lost may have been made or
not. So `Adapters` keeps the updates since its last checkpoint on the server. After a fault it opens a new session,
loads that checkpoint, makes these updates again, and then does what was asked. So each update is made exactly once.

Servers pin SDKs, so each since 0.25 will do. Before 0.38 a call that makes a client waits for the server: a thread of
its own does it, which a deadline or a signal leaves behind.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import os
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, TypeVar

import tinker
from orl_core.config import TrainerConfig
from orl_core.errors import EngineError, EngineRefused, boundary
from orl_rollout.edge import interrupt
from orl_rollout.edge.retry import backoff
from orl_rollout.logs import logger_of
from tinker import AdamParams, ForwardBackwardOutput, ModelInput, SampledSequence, SamplingParams
from tinker.types import RequestErrorCategory

from orl_tinker.options import TinkerOptions, own_options

try:
    from tinker.auth import tinker_has_credentials
except ImportError:  # SDK 0.25

    def tinker_has_credentials() -> bool:
        """Tell whether the SDK finds a key."""
        return any(map(os.environ.get, (KEY, "TINKER_CREDENTIAL_CMD")))


T = TypeVar("T")
UPDATE_SECONDS = 3600.0  # for one request that trains, with its time in the server's queue
FINAL = frozenset({400, 401, 402, 403, 422})  # the same request fails again
ANY_KEY = "tml-none"  # the SDK wants a key, which a server of the user's need not have
KEY, ADDRESS, TELEMETRY = "TINKER_API_KEY", "TINKER_BASE_URL", "TINKER_TELEMETRY"
logger = logger_of("orl")


def has_key(own: TinkerOptions) -> bool:
    """Tell whether the SDK finds a key, or the server is the user's own and needs none."""
    return bool(own.tinker_url or os.environ.get(ADDRESS)) or tinker_has_credentials()


class Adapters:
    """Adapters on the server, used as `async with`: those of the checkpoint `path`, or new ones of `model`.

    `path` is their last checkpoint from then on.
    """

    def __init__(self, trainer: TrainerConfig, model: str, path: str, patience: float) -> None:
        self._own, self._seed, self._model, self._patience = own_options(trainer), trainer.seed, model, patience
        self._since: list[tuple[Sequence[tinker.Datum], AdamParams]] = []  # the updates
        self._sessions = 0
        self._torn = False  # an update has begun whose end is not known
        self._lock = asyncio.Lock()
        self._service: tinker.ServiceClient | None = None
        self._training: Any = None
        self._sampler: Any = None
        self.path = path

    async def __aenter__(self) -> Adapters:
        os.environ.setdefault(TELEMETRY, "0")  # it would send texts of errors to the server
        logging.getLogger(tinker.__name__).setLevel(logging.ERROR)  # it warns of each wait for a result
        with boundary(EngineError, "opening a session of Tinker"):
            await self._open()
        if not self.path:  # a seed need not give the same adapters again
            await self.save("start")
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._close()

    async def update(self, rows: Sequence[tinker.Datum], adam: AdamParams) -> ForwardBackwardOutput:
        """Make one update from `rows`; both requests are sent before either is answered.

        Return its loss, the metrics of both, and the logprobs of each row's targets.

        Raises:
            EngineError: the server refuses it, or is away for too long.
        """
        trained = await self._lasting("training", partial(self._update, rows, adam))
        self._since.append((rows, adam))
        self._torn = False
        return trained

    async def refresh(self) -> None:
        """Let `sample` see the weights as they are now.

        Raises:
            EngineError: as `update`.
        """
        await self._lasting("copying the weights to the sampler", self._refresh)

    async def sample(self, prompt: ModelInput, params: SamplingParams) -> SampledSequence:
        """Sample one continuation of `prompt` with the weights of the last `refresh`.

        Raises:
            EngineError: as `update`.
        """

        async def ask() -> SampledSequence:
            try:
                return (await _result_of(self._sampler.sample(prompt, 1, params))).sequences[0]
            except AssertionError as fault:
                raise EngineRefused(f"the server is of an older protocol: {fault}. Install tinker 0.25") from fault

        return await self._lasting("sampling", ask)

    async def save(self, name: str) -> str:
        """Save the weights and the state of Adam on the server. Return the path.

        Raises:
            EngineError: as `update`.
        """
        saved = await self._lasting("saving a checkpoint", lambda: self._training.save_state(name, overwrite=True))
        self.path = saved.path
        self._since.clear()
        return self.path

    async def _update(self, rows: Sequence[tinker.Datum], adam: AdamParams) -> ForwardBackwardOutput:
        self._torn = True
        named = self._sessions == 1  # the server forgot what it sampled in an earlier session
        rows = list(rows if named else map(_unnamed, rows))
        async with asyncio.timeout(UPDATE_SECONDS):
            gradient = self._training.forward_backward(rows, self._own.loss_fn, self._own.loss_config or None)
            step = self._training.optim_step(adam)
            output = await gradient
            output.metrics.update((await step).metrics or {})
        return output

    async def _refresh(self) -> None:
        async with asyncio.timeout(UPDATE_SECONDS):
            self._sampler = await _made(self._training.save_weights_and_get_sampling_client)

    async def _lasting(self, what: str, work: Callable[[], Awaitable[T]]) -> T:
        """Do `work`, again in a new session after a fault that may pass, for as long as `patience`."""
        failed: float | None = None
        for pause in backoff(0.5, 30.0):
            session = self._sessions
            try:
                with boundary(EngineError, f"Tinker, {what}"):
                    if failed is not None or self._torn:
                        await self._renew(session)
                    return await work()
            except EngineError as fault:
                failed = failed or time.monotonic()
                if _is_final(fault) or time.monotonic() - failed > self._patience:
                    raise
                logger.warning("%s: trying again in a new session", fault)
            await asyncio.sleep(pause)
        raise AssertionError("backoff does not end")

    async def _renew(self, session: int) -> None:
        """Open a session after the one with the number `session`, unless another task has."""
        async with self._lock:
            if self._sessions == session:
                self._torn = True
                self._close()
                await self._open()
                for rows, adam in self._since:
                    await self._update(rows, adam)
                await self._refresh()
                self._torn = False

    async def _open(self) -> None:
        key = None if tinker_has_credentials() or not has_key(self._own) else ANY_KEY
        async with asyncio.timeout(UPDATE_SECONDS):
            self._service = service = await _made(partial(_connected, self._own.tinker_url, key))
            if self.path:
                make = partial(service.create_training_client_from_state_with_optimizer, self.path)
            else:
                make = partial(service.create_lora_training_client, self._model, self._own.lora_rank, self._seed)
            self._training = await _made(make)
        self._sessions += 1

    def _close(self) -> None:
        service, self._service = self._service, None
        if service is not None:
            service.holder.close()


def _connected(url: str | None, key: str | None) -> tinker.ServiceClient:
    service = tinker.ServiceClient(base_url=url, api_key=key)
    _ = service.holder  # made when it is first read, by requests that block
    return service


async def _made(make: Callable[[], Any]) -> Any:
    """Return what `make` makes on a thread of its own."""

    def work() -> Any:
        with boundary(EngineError, "calling Tinker"):
            return make()

    return await _result_of(await asyncio.wrap_future(interrupt.on_thread(work)))


async def _result_of(answer: Any) -> Any:
    """Await `answer` of the SDK. Before 0.38 it may be a future of `concurrent`, or a client itself."""
    if isinstance(answer, tinker.APIFuture):
        return await answer
    return await asyncio.wrap_future(answer) if isinstance(answer, Future) else answer


def _unnamed(datum: tinker.Datum) -> tinker.Datum:
    if getattr(datum, "model_input_spans", None) is None:
        return datum
    return dataclasses.replace(datum, model_input_spans=None, loss_fn_input_spans=None)


def _is_final(fault: EngineError) -> bool:
    """Tell whether the same request fails again."""
    cause = fault.__cause__
    if isinstance(cause, tinker.RequestFailedError):
        return cause.category is RequestErrorCategory.User
    return isinstance(fault, EngineRefused) or (isinstance(cause, tinker.APIStatusError) and cause.status_code in FINAL)
