"""The protocol of an engine that samples for a training run, batch by batch."""

from __future__ import annotations

from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Protocol, TypeVar

from orl_rollout.loop.engine import Engine

T = TypeVar("T")


class BatchEngine(Protocol):
    """The engine of a training run, which samples batch by batch, each with the weights of then.

    `metrics` are numbers of the latest batch; `weight_sync_seconds`, if present, is no time of the rollouts.
    """

    metrics: dict[str, float]

    def client(self) -> AbstractAsyncContextManager[Engine]:
        """Open, on the rollouts' event loop, the engine that they ask."""
        ...

    def batch(self, version: str) -> AbstractContextManager[None]:
        """Let the block sample with the weights as they are, `version`. Training may have the memory afterwards.

        Raises:
            EngineError: the engine does not get the weights.
        """
        ...

    def serve(self, until: Future[T]) -> T:
        """Answer requests from this thread until `until` is done. Return its result.

        Raises:
            Interrupted: a signal came.
            EngineError: the engine is gone for good.
            Exception: whatever `until` raises.
        """
        ...
