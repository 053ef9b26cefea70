"""An SGLang as the engine of a training run: the weights of each batch, the memory, restarts.

Before a batch, SGLang takes its memory back and gets the weights, and its checksums are compared. After the batch it
releases its memory, if it can. Rollouts ask it through `orl_rollout.sglang.client` on their own event loop, and retry
while it is started again. It knows neither tasks nor the loss.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from typing import TypeVar

import torch
from msgspec import Struct
from orl_core.errors import EngineError
from orl_rollout.edge import interrupt
from orl_rollout.sglang.client import SglangEngine, Timeouts
from transformers import PreTrainedModel

from orl_trl.engine.lora import policy_weights
from orl_trl.engine.sglang_control import SglangControl
from orl_trl.engine.sglang_process import SglangProcess
from orl_trl.engine.weight_check import WeightCheck, fingerprints
from orl_trl.engine.weights import WeightSender

T = TypeVar("T")

POLL_SECONDS = 0.2  # between two looks whether the server lives
SYNC_SECONDS, RESTARTS = "weight_sync_seconds", "engine_restarts"  # in the metrics


class Server(Struct, frozen=True, kw_only=True):
    """An SGLang: its address, its context in token ids, whether it can give memory back, `exact` as in `WeightCheck`,
    and how long rollouts wait for it.
    """

    url: str
    context_tokens: int
    releases: bool = False
    exact: bool = False
    timeouts: Timeouts = Timeouts()


class ServedEngine:
    """`BatchEngine` over an SGLang, which samples for `model` with the weights of `sender`.

    `process` is None if someone else serves it.
    """

    def __init__(
        self, model: PreTrainedModel, server: Server, sender: WeightSender, process: SglangProcess | None = None
    ) -> None:
        self._model = model
        self._server = server
        self._control = SglangControl(server.url)
        self._sender = sender
        self._process = process
        self._check = WeightCheck(self._control, exact=server.exact)
        self._released = False
        self._version: str | None = None  # of the weights that it has
        self.metrics: dict[str, float] = {}

    def client(self) -> SglangEngine:
        """Return a client of the server. Its retries outlive a restart."""
        server = self._server
        return SglangEngine(server.url, context_tokens=server.context_tokens, timeouts=server.timeouts)

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
        if self._process is not None:
            self._process.served()
        if self._server.releases:
            with self._timed():
                self._survives(self._release)

    def serve(self, until: Future[T]) -> T:
        """Wait for `until`, and start the server again if it dies meanwhile. Return the result of `until`.

        Raises:
            Interrupted: a signal came.
            EngineError: the server died again before it served a batch.
            Exception: whatever `until` raises.
        """
        while not until.done():
            interrupt.check()
            if self._died():
                with self._timed():
                    self._restart(self._version or "")
            wait((until,), POLL_SECONDS)
        return until.result()

    def _prepare(self, version: str) -> None:
        if version == self._version and not self._released and not self._died():
            return
        _empty_cache()  # what the optimizer step needed, the engine can have
        if self._died() or not self._survives(lambda: self._send(version)):
            self._restart(version)

    def _send(self, version: str) -> None:
        sent = fingerprints(policy_weights(self._model))
        if self._released:
            self._control.resume("cuda_graph")
            self._control.resume("weights")
        self._sender.send(self._model, version)
        if self._released:
            _empty_cache()  # and what the sync needed
            self._control.resume("kv_cache")
        self._released, self._version = False, version
        self.metrics.update(self._check.after_sync(sent))

    def _release(self) -> None:
        self._control.settle()
        # SGLang waits for its GPU only after a release (its pull request 31073), and kernels of answered requests may
        # still read weights and KV cache. The graphs' memory is not the saver's, so their release is that wait alone.
        self._control.release("cuda_graph")
        self._control.release("weights")
        self._control.release("kv_cache")
        self._released = True

    def _died(self) -> bool:
        return self._process is not None and self._process.ended

    def _survives(self, work: Callable[[], None]) -> bool:
        """Return False if the server dies of `work`. Raise its error if the server lives."""
        try:
            work()
        except EngineError:
            if self._process is None or not self._process.ends():
                raise
            return False
        return True

    def _restart(self, version: str) -> None:
        """Start the server again with the weights as they are: a rollout may ask it before the next batch.

        Raises:
            EngineError: it died again before it served a batch, or does not start.
        """
        if self._process is None:
            return
        self._sender.write(self._model)
        self._process.restart(self._sender.folder, version)
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
    """Give memory of the GPU that torch keeps for later back, if there is one."""
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
