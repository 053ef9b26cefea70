"""The policy of a run on this machine: weights in a rank, and the engine that samples with them."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, suppress
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, cast

from orl_core.errors import EngineError, OrlError
from orl_rollout.edge import interrupt
from orl_rollout.edge.children import piped
from orl_rollout.training.rows import Row

from orl_local.engine.served_engine import ABORT, GO, HERE, STOP, Engines, ServedEngine, Worker

if TYPE_CHECKING:
    from orl_local.engine.in_process_engine import InProcessEngine
    from orl_local.planning import Planned
    from orl_local.rank import Rank


FAIL_SECONDS = 5.0  # between two ranks that fail together


class LocalPolicy:
    """The weights of `worker` and the engine that samples with them; see `orl_rollout.training.course.Policy`.

    `ahead`: the engine samples during an update, too.
    """

    def __init__(
        self, worker: Worker, engine: ServedEngine | Engines | InProcessEngine, *, ahead: bool = False
    ) -> None:
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


class RankDied(EngineError):
    """The process of a rank is gone, and with it the weights of its step."""


class Child:
    """A rank in a process of its own, used as `async with`; it starts with the block. See `Worker`.

    The first call is `begin`, with the plan. It loads the weights on the CPU: a server that starts takes its share of
    the GPU's memory first. At the `gate` it waits for other ranks.
    """

    def __init__(self, gate: asyncio.Barrier) -> None:
        self._life, self._asking, self._gate = ExitStack(), asyncio.Lock(), gate
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
            RankDied: it is gone.
        """
        self._asked = asyncio.ensure_future(self._ask(name, arguments))
        return await asyncio.shield(self._asked)

    async def _ask(self, name: str, arguments: Sequence[Any]) -> Any:
        """Ask, one question after the other. An answer is taken even if nobody waits for it any more."""
        async with self._asking:
            try:
                self._pipe.send((name, arguments))
                while (answer := await self._receive()) == HERE:
                    self._pipe.send((await self._pass(), ()))
            except (OSError, OrlError) as fault:
                code = self._process.poll()
                raise RankDied(f"the training process died in `{name}`, exit code {code}: {fault}") from fault
        if isinstance(answer, BaseException):
            raise answer
        return answer

    async def _receive(self) -> Any:
        return await asyncio.wrap_future(interrupt.on_thread(self._pipe.recv, "the training process"))

    async def _pass(self) -> str:
        """Return GO once all ranks are at the gate, or ABORT if one of them failed."""
        try:
            await self._gate.wait()
        except asyncio.BrokenBarrierError:
            return ABORT
        return GO

    def stop(self) -> None:
        """Let the child stop its update, if nothing of it is applied yet."""
        with suppress(OSError):  # it died
            self._pipe.send((STOP, ()))

    def kill(self) -> None:
        """End the child at once."""
        self._process.kill()


class Ranks:
    """A child for each of `count` GPUs, used as `async with`. See `Worker`: all update, and the first one saves.

    If they have `sharded` the weights, all of them do all that is asked, and the first one writes and sends.
    """

    def __init__(self, count: int, *, sharded: bool = False) -> None:
        self._gate, self._met, self._sharded = asyncio.Barrier(count), False, sharded
        self.children = [Child(self._gate) for _ in range(count)]

    async def __aenter__(self) -> Ranks:
        async with AsyncExitStack() as opening:
            self._folder = opening.enter_context(TemporaryDirectory(prefix="orl-"))
            for child in self.children:
                await opening.enter_async_context(child)
            self._life = opening.pop_all()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._life.aclose()

    async def begin(self, plan: Planned) -> None:
        """Let each child load the weights."""
        count, meeting = len(self.children), f"{self._folder}/meeting"
        await self._all([child.call("begin", plan, rank, count, meeting) for rank, child in enumerate(self.children)])
        self._met = True

    async def call(self, name: str, *arguments: Any) -> Any:
        """Ask all children, or the first one to save. Memory is the most of any, and halvings are counted of all.

        Raises:
            RankDied: one is gone, so that the others are ended.
        """
        if name == "save" and not self._sharded:
            return await self.children[0].call(name, *arguments)
        answers = await self._all([child.call(name, *arguments) for child in self.children])
        if name != "update":
            return answers[0]
        most = {key: max(one[key] for one in answers) for key in ("train_memory_gib",) if key in answers[0]}
        halved = {key: sum(one[key] for one in answers) for key in ("out_of_memory",) if key in answers[0]}
        return {**answers[0], **most, **halved}

    async def _all(self, calls: Sequence[Coroutine[Any, Any, Any]]) -> list[Any]:
        """Return the answers of all calls. One that fails ends the others, also those that wait for it.

        Before all have met, and after one died, others may wait in a collective: they are killed. So are those with
        sharded weights that do not fail as well.
        """
        answers = [asyncio.ensure_future(call) for call in calls]
        left, faults, killed = {*answers}, list[BaseException](), False
        while left:
            patience = FAIL_SECONDS if faults else None
            done, left = await asyncio.wait(left, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
            ended = (asyncio.CancelledError() if one.cancelled() else one.exception() for one in done)
            faults += () if killed else filter(None, ended)
            if faults:  # also if none is left: after a death no weights of the others count
                await self._gate.abort()
                alone = not self._met or any(isinstance(one, RankDied) for one in faults)
                killed = killed or alone or (self._sharded and not done)
                for child in self.children if killed else ():
                    child.kill()
        if faults:
            await self._gate.reset()
            raise next((one for one in faults if isinstance(one, RankDied)), faults[0])
        return [one.result() for one in answers]

    def stop(self) -> None:
        """Let all children stop their update, if nothing of it is applied yet."""
        for child in self.children:
            child.stop()
