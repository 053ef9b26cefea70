"""The policy of a run on this machine: weights in a rank, and the engine that samples with them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from orl_core.errors import EngineError, OrlError
from orl_rollout.edge import interrupt
from orl_rollout.edge.children import piped
from orl_rollout.training.rows import Row

from orl_local.engine.served_engine import ServedEngine, Worker

if TYPE_CHECKING:
    from orl_local.engine.in_process_engine import InProcessEngine
    from orl_local.rank import Rank


class LocalPolicy:
    """The weights of `worker` and the engine that samples with them; see `orl_rollout.training.policy.Policy`.

    `ahead`: the engine samples during an update, too.
    """

    def __init__(self, worker: Worker, engine: ServedEngine | InProcessEngine, *, ahead: bool = False) -> None:
        self._worker, self._release, self._ahead = worker, engine.release, ahead
        self.publish, self.engine = engine.publish, engine.client

    async def update(self, rows: Sequence[Row], step: int) -> Mapping[str, float]:
        """Make the updates of a step where the weights are."""
        if not self._ahead:
            await self._release()
        return await self._uncut(2, "update", list(rows), step)

    async def save(self, folder: Path, step: int) -> None:
        """Write the checkpoint after `step` steps. Signals wait until it is whole, and the Course obeys them then."""
        with interrupt.held():
            await self._uncut(3, "save", folder, step)

    async def _uncut(self, signals: int, name: str, *arguments: Any) -> Any:
        """Call the worker, and let it end what it has begun: the Course obeys a signal then.

        So many `signals` end the wait.
        """
        working = asyncio.ensure_future(self._worker.call(name, *arguments))
        while not working.done():
            try:
                await asyncio.wait({working})
            except asyncio.CancelledError:
                if interrupt.count() >= signals:
                    raise
                self._worker.stop()
        return working.result()


class Here:
    """A rank on the main thread of this process, which also serves the engine. See `Worker`."""

    def __init__(self, rank: Rank, engine: InProcessEngine) -> None:
        self._rank, self._engine = rank, engine

    async def call(self, name: str, *arguments: Any) -> Any:
        """Do it between two batches of the engine."""
        return await self._engine.run(partial(getattr(self._rank, name), *arguments))

    def stop(self) -> None:
        """Do nothing: the rank looks for the signal by itself."""


class Child:
    """A rank in a process of its own, used as `async with`; it starts with the block. See `Worker`.

    The first call is `begin`, with the plan. It loads the weights on the CPU: a server that starts takes its share of
    the GPU's memory first.
    """

    def __init__(self) -> None:
        self._life, self._asking = ExitStack(), asyncio.Lock()
        self._asked: asyncio.Future[Any] | None = None

    async def __aenter__(self) -> Child:
        self._process, pipe = self._life.enter_context(piped("orl_local.rank"))
        self._pipe = cast("Connection[Any, Any]", Connection(pipe.detach()))
        self._life.callback(self._pipe.close)  # at which the child ends by itself
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._life.close()
        if self._asked is not None:  # a question that nobody waits for
            await asyncio.gather(self._asked, return_exceptions=True)

    async def call(self, name: str, *arguments: Any) -> Any:
        """Ask the child, and wait.

        Raises:
            EngineError: the child died.
        """
        self._asked = asyncio.ensure_future(self._ask(name, arguments))
        return await asyncio.shield(self._asked)

    async def _ask(self, name: str, arguments: Sequence[Any]) -> Any:
        """Ask, one question after the other. An answer is taken even if nobody waits for it any more."""
        async with self._asking:
            try:
                self._pipe.send((name, arguments))
                answer = await asyncio.wrap_future(interrupt.on_thread(self._pipe.recv, "the training process"))
            except (OSError, OrlError) as fault:
                code = self._process.poll()
                raise EngineError(f"the training process died in `{name}`, exit code {code}: {fault}") from fault
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def stop(self) -> None:
        """Let the child stop its update, if nothing of it is applied yet."""
        with suppress(OSError):  # it died
            self._pipe.send(("stop", ()))
