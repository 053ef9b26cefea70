"""An SGLang as the engine of a training run: the weights of each batch, the memory beside training, restarts.

Before a batch, SGLang takes its memory back and gets the weights, and its checksums are compared. After the batch it
releases its memory, if it can. Rollouts ask it through `orl_rollout.sglang.client` on their own event loop, and retry
while it is started again. It knows neither tasks nor the loss.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import TypeVar

import torch
from msgspec import Struct
from orl_core.errors import EngineError
from orl_rollout.edge import interrupt
from orl_rollout.loop.engine import Engine
from orl_rollout.sglang.client import SglangEngine, Timeouts
from transformers import PreTrainedModel

from orl_trl.lora import policy_weights
from orl_trl.sglang_control import SglangControl
from orl_trl.sglang_process import START_SECONDS, SglangProcess
from orl_trl.weight_check import WeightCheck, fingerprints
from orl_trl.weight_sync import SharedMemorySync, WeightSync

T = TypeVar("T")

POLL_SECONDS = 0.2  # between two looks whether the server lives
DEATH_SECONDS = 20.0  # from the end of its HTTP server to that of its processes
SYNC_SECONDS, RESTARTS = "weight_sync_seconds", "engine_restarts"  # in the metrics


class Server(Struct, frozen=True, kw_only=True):
    """An SGLang: its address, its context in token ids, whether it can give memory back, `exact` as in `WeightCheck`,
    and how long rollouts wait for it.
    """

    url: str
    context_tokens: int
    releases: bool = False
    exact: bool = False
    patience: float = Timeouts().retry


class Child(Struct, frozen=True):
    """The process of a server that this one started. `weights` is written where it has to start again."""

    process: SglangProcess
    weights: SharedMemorySync


class ServedEngine:
    """`orl_trl.rollouts.BatchEngine` over an SGLang, which samples for `model` with weights that come through `sync`.

    `child` is None if someone else serves it.
    """

    def __init__(self, model: PreTrainedModel, server: Server, sync: WeightSync, child: Child | None = None) -> None:
        self._model = model
        self._server = server
        self._control = SglangControl(server.url)
        self._sync = sync
        self._child = child
        self._check = WeightCheck(self._control, exact=server.exact)
        self._released = False
        self._version: str | None = None  # of the weights that it has
        self.metrics: dict[str, float] = {}

    def client(self) -> AbstractAsyncContextManager[Engine]:
        """Return a client of the server. Its retries outlive a restart."""
        timeouts = Timeouts(retry=self._server.patience)
        if self._child is not None:  # a first start takes longer than an engine that is only away
            timeouts = Timeouts(retry=max(self._server.patience, START_SECONDS), first=START_SECONDS)
        return SglangEngine(self._server.url, context_tokens=self._server.context_tokens, timeouts=timeouts)

    @contextmanager
    def batch(self, version: str) -> Generator[None]:
        """Let the block sample with the weights of `model` as they are, under the name `version`.

        Raises:
            EngineError: the weights do not arrive, or the server died again before it served a batch.
        """
        self.metrics = {SYNC_SECONDS: 0.0}
        with self._timed():
            self._prepare(version)
        yield
        if self._child is not None:
            self._child.process.served()
        with self._timed():
            self._release()

    def serve(self, until: Future[T]) -> T:
        """Wait for `until`, and start the server again if it dies meanwhile. Return the result of `until`.

        Raises:
            Interrupted: a signal came.
            EngineError: the server died again before it served a batch.
            Exception: whatever `until` raises.
        """
        awake = threading.Event()
        until.add_done_callback(lambda _: awake.set())
        with interrupt.notified(awake.set):
            while not until.done():
                interrupt.check()
                if self._died():
                    with self._timed():
                        self._restart(self._version or "")
                awake.wait(POLL_SECONDS)
        return until.result()

    def _prepare(self, version: str) -> None:
        if version == self._version and not self._released and not self._died():
            return
        _empty_cache()  # what the optimizer step needed, the engine can have
        if self._died():
            self._restart(version)
        else:
            self._from_child(lambda: self._send(version), version)

    def _send(self, version: str) -> None:
        sent = fingerprints(policy_weights(self._model))
        if self._released:
            self._control.resume("weights")
        self._sync(self._model, version)
        if self._released:
            _empty_cache()  # and what the sync needed
            self._control.resume("kv_cache")
        self._released, self._version = False, version
        self.metrics.update(self._check.after_sync(sent))

    def _release(self) -> None:
        if self._server.releases:
            self._from_child(self._give_back, None)

    def _give_back(self) -> None:
        self._control.settle()
        # SGLang waits for its GPU only after a release (its pull request 31073). Kernels of answered requests may still
        # read the KV cache, so the release of the weights is the wait before that of the cache.
        self._control.release("weights")
        self._control.release("kv_cache")
        self._released = True

    def _from_child(self, work: Callable[[], None], version: str | None) -> None:
        """Do `work`. If the server dies of it, start it again with the weights `version`; None: the next batch will."""
        try:
            work()
        except EngineError:
            if not self._dies():
                raise
            if version is not None:
                self._restart(version)

    def _died(self) -> bool:
        return self._child is not None and self._child.process.ended

    def _dies(self) -> bool:
        """Return whether the server died just now. One that does not answer has a while to end."""
        if self._child is None or self._control.healthy():
            return False
        ends = time.monotonic() + DEATH_SECONDS
        while not self._died() and time.monotonic() < ends:
            interrupt.check()
            time.sleep(POLL_SECONDS)
        return self._died()

    def _restart(self, version: str) -> None:
        """Start the server again with the weights as they are.

        Raises:
            EngineError: it died again before it served a batch, or does not start.
        """
        if self._child is None:
            return
        self._child.weights.write(self._model)
        self._child.process.restart(str(self._child.weights.folder), version)
        self._released, self._version = False, version
        self.metrics[RESTARTS] = self.metrics.get(RESTARTS, 0.0) + 1
        self._check.restarted()
        self._check.after_sync(fingerprints(policy_weights(self._model)))

    @contextmanager
    def _timed(self) -> Generator[None]:
        """Add the seconds of the block to `weight_sync_seconds`."""
        started = time.monotonic()
        try:
            yield
        finally:
            self.metrics[SYNC_SECONDS] += time.monotonic() - started


def _empty_cache() -> None:
    """Give memory of the GPU that torch keeps for later back, where there is one."""
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
