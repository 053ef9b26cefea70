"""An SGLang or a vLLM as the engine of a training run: its weights, its memory, its restarts.

It gets new weights after each step, and its checksums are compared. While the trainer works it gives its memory back,
if both do not fit. Rollouts ask it through `orl_rollout`, and retry while it is started again. The
weights are in another process (`rank`), which sends them. It knows neither tasks nor the loss.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import Any, Protocol

from msgspec import Struct
from orl_core.errors import EngineError, OrlError, first_error
from orl_core.trajectory import Generation
from orl_rollout.engine_connection import Timeouts
from orl_rollout.logs import logger_of
from orl_rollout.loop.engine import Engine
from orl_rollout.run_folder.contract import Run
from orl_rollout.sglang.client import SglangEngine
from orl_rollout.vllm.client import VllmEngine

from orl_local.engine.control import Control, Launch
from orl_local.engine.engine_process import START_SECONDS, EngineProcess, environment_for
from orl_local.engine.sglang_control import SglangControl
from orl_local.engine.weight_check import WeightCheck

logger = logger_of("orl")

POLL_SECONDS = 0.2  # between two looks whether the server lives
RESTARTS = "engine_restarts"  # in the metrics
STOP, HERE, GO, ABORT = "stop", "here", "go", "abort"  # words between a rank and the run's process


class Worker(Protocol):
    """Where the weights are: calls a method of `orl_local.rank.Rank` there, one after the other."""

    async def call(self, name: str, *arguments: Any) -> Any:
        """Return what the method returns.

        Raises:
            OrlError: what the method raises, or the process is gone.
        """
        ...

    def stop(self) -> None:
        """Let an update stop of which nothing is applied yet. It then raises CancelledError."""
        ...


class Server(Struct, frozen=True, kw_only=True):
    """An engine: its kind, its address and its context in token ids. `folder` is for checkpoints that it loads.

    It `releases` memory while the trainer works. One that orl started (`own`) takes handles of weights on its `gpus`
    GPUs, and holds them as they are sent (`exact` in WeightCheck).
    """

    control: type[Control] = SglangControl
    url: str
    context_tokens: int
    folder: Path
    releases: bool = False
    own: bool = False
    gpus: int = 1
    timeouts: Timeouts = Timeouts()


class WeightSender:
    """Sends the weights that `rank` took to an engine, and leaves its prefix cache empty.

    Handles of the GPU that both use (CUDA IPC) send 0.6B parameters in 0.04 s, a checkpoint in a folder in 1.9 s
    (docs/evidence.md). The checkpoint is for engines that take no handles: those at an address, a vLLM on other GPUs, a
    mixture of experts, a container that forbids CUDA IPC. An engine that died starts from it.
    """

    def __init__(self, rank: Worker, control: Control, server: Server) -> None:
        self._rank, self._control, self._folder, self._handles = rank, control, server.folder, server.own

    async def send(self, version: str) -> None:
        """Let the engine compute with the weights from now on, as `version`.

        Once handles have failed and the checkpoint has not, checkpoints are sent. An engine that takes weights neither
        way died.

        Raises:
            EngineError: the weights cannot be sent, or the engine refuses them.
        """
        fault = None
        try:
            shared = self._handles and await self._share(version)
        except EngineError as exc:
            shared, fault = False, exc
        if not shared:
            await self._send_checkpoint(version)
            self._handles = False
        if fault:
            logger.warning("weights go through %s from now on: %s", self._folder, fault)
        await self._control.flush_cache()

    async def _share(self, version: str) -> bool:
        """Send bucket by bucket. Return False if the engine could not use handles."""
        number = 0
        while (handles := await self._rank.call("share", number)) is not None:
            if not number:
                await self._control.prepare()
            await self._control.update_from_tensors(handles, version)
            number += 1
        if number:
            await self._control.finish(version)
            await self._rank.call("share", number)  # lets go of what the engine has closed by now
        return number > 0

    async def _send_checkpoint(self, version: str) -> None:
        await self._rank.call("write", self._folder)
        try:
            await self._control.update_from_disk(str(self._folder), version)
        except EngineError as fault:
            raise EngineError(
                f"{fault}. Let {self._control.NAME} read {self._folder}, if it runs in a container"
            ) from fault


class ServedEngine:
    """A server as engine of a run, which samples for the weights of `rank`. `process` is None if someone else's.

    `gone` gets the EngineError of a server that is gone for good.
    """

    def __init__(self, rank: Worker, server: Server, process: EngineProcess | None = None) -> None:
        self._rank, self._server, self._process = rank, server, process
        self._control = server.control(server.url, server.gpus)
        self._sender = WeightSender(rank, self._control, server)
        self._check = WeightCheck(server.control.NAME, exact=server.own)
        self._client = server.control.CLIENT(server.url, context_tokens=server.context_tokens, timeouts=server.timeouts)
        self._life, self._busy = AsyncExitStack(), asyncio.Lock()
        self._playing = self._released = False
        self._version = ""  # of the weights that it has
        self._restarts = 0

    async def __aenter__(self) -> ServedEngine:
        self.gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self._process is not None:
            await self._process.wait()
            watching = asyncio.create_task(self._watch())
            self._life.callback(watching.cancel)
        await self._life.enter_async_context(self._control)
        await self._life.enter_async_context(self._client)
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._life.aclose()

    def client(self) -> SglangEngine | VllmEngine:
        """Return the client of the server. Its retries outlive a restart."""
        return self._client

    async def publish(self, version: str) -> dict[str, float]:
        """Let the server sample with the weights as they are, under the name `version`. Return metrics.

        Raises:
            EngineError: the weights do not arrive, or the server died again before it served a batch.
        """
        metrics: dict[str, float] = {}

        async def send() -> None:
            if self._released:
                await self._control.wake()
            await self._sender.send(version)
            await self._control.serve(woken=self._released)
            self._released, self._version = False, version
            metrics.update(await self._checked())

        async with self._busy:
            died = self._died()
            if self._process is not None and self._playing and not died:  # it played while the trainer worked
                self._process.served()
            await self._rank.call("take")
            if died or not await self._survives(send):
                await self._restart(version)
            self._playing = True
            restarts, self._restarts = self._restarts, 0
        return {**metrics, **({RESTARTS: float(restarts)} if restarts else {})}

    async def release(self) -> None:
        """Let the trainer have the memory, once the rollouts of a batch have ended."""
        async with self._busy:
            self._playing = False
            if self._process is not None:
                self._process.served()
            if self._server.releases and not self._released:
                await self._survives(self._release)

    async def _watch(self) -> None:
        """Start the server again if it dies while rollouts play."""
        while not self.gone.done():
            async with self._busy:
                if self._playing and self._died():
                    try:
                        await self._restart(self._version)
                    except OrlError as fault:
                        self.gone.set_exception(fault)
            await asyncio.sleep(POLL_SECONDS)

    async def _release(self) -> None:
        await self._control.release()
        self._released = True

    async def _checked(self) -> dict[str, float]:
        """Compare what was sent with what the server has. Both compute at the same time. Return metrics."""
        sent, shown = await asyncio.gather(self._rank.call("fingerprints"), self._control.checksums())
        return self._check.after_sync(sent, shown)

    def _died(self) -> bool:
        return self._process is not None and self._process.ended

    async def _survives(self, work: Callable[[], Awaitable[object]]) -> bool:
        """Return False if the server dies of `work`. Raise its error if the server lives."""
        try:
            await work()
        except EngineError:
            if self._process is None or not await self._process.ends():
                raise
            return False
        return True

    async def _restart(self, version: str) -> None:
        """Start the server again with the weights as they are: a rollout may ask it before the next batch.

        Raises:
            EngineError: it died again before it served a batch, or does not start.
        """
        if self._process is None:
            return
        await self._rank.call("write", self._server.folder)
        await self._process.restart(self._server.folder, version)
        self._released, self._version = False, version
        self._restarts += 1
        self._check = WeightCheck(self._control.NAME, exact=self._server.own)  # another process begins anew
        if not await self._survives(self._checked):
            await self._process.restart(self._server.folder, version)  # which says that it died twice


class Engines:
    """The engines of a run as one, each with the rank that sends it weights. Used as `async with`.

    A rollout stays with its engine, whose cache knows its ids; the next rollout goes to the next engine. `gone` as in
    ServedEngine.
    """

    def __init__(self, ranks: Mapping[ServedEngine, Worker]) -> None:
        self._ranks, self._life, self._seats = ranks, AsyncExitStack(), dict[str, Engine]()

    async def __aenter__(self) -> Engines:
        await asyncio.gather(*map(self._life.enter_async_context, self._ranks))
        self.gone = asyncio.get_running_loop().create_future()
        for engine in self._ranks:
            engine.gone.add_done_callback(self._lost)
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._life.aclose()

    def client(self) -> Engine:
        """Return what asks the engine of a rollout. The client of a single one travels to other processes."""
        first, *others = self._ranks
        return self if others else first.client()

    async def generate(self, ids: Sequence[int], sampling: Mapping[str, Any], *, key: str) -> Generation:
        """See `orl_rollout.loop.engine.Engine`."""
        clients = [engine.client() for engine in self._ranks]
        seat = self._seats.setdefault(key, clients[len(self._seats) % len(clients)])
        return await seat.generate(ids, sampling, key=key)

    async def publish(self, version: str) -> dict[str, float]:
        """See `ServedEngine.publish`. A rank serves one engine after the other."""
        self._seats.clear()

        async def serve(rank: Worker) -> list[dict[str, float]]:
            return [await engine.publish(version) for engine, its in self._ranks.items() if its is rank]

        try:
            async with asyncio.TaskGroup() as group:
                serving = [group.create_task(serve(rank)) for rank in {*self._ranks.values()}]
        except BaseExceptionGroup as errors:  # if one fails, the others stop
            raise first_error(errors) from errors
        metrics = [metrics for task in serving for metrics in task.result()]
        restarts = sum(one.get(RESTARTS, 0.0) for one in metrics)
        return {**metrics[0], **({RESTARTS: restarts} if restarts else {})}

    async def release(self) -> None:
        """See `ServedEngine.release`."""
        await asyncio.gather(*(engine.release() for engine in self._ranks))

    def _lost(self, gone: asyncio.Future[None]) -> None:
        if not gone.cancelled() and not self.gone.done():
            self.gone.set_exception(gone.exception() or EngineError("an engine is gone"))


@contextmanager
def started(run: Run, launch: Launch, folder: Path, rank: Worker) -> Generator[ServedEngine]:
    """Start the server `launch`, which ends with the block. It gets checkpoints through `folder`.

    The engine that is yielded is to be entered.
    """
    with EngineProcess(launch, run.folder, environment_for(run.config)) as process:
        # A first start takes longer than the absence of an engine that runs.
        timeouts = Timeouts(retry=max(run.config.rollout.patience, START_SECONDS), first=START_SECONDS)
        server = Server(
            control=launch.control,
            url=process.url,
            context_tokens=launch.context_tokens,
            folder=folder,
            releases=launch.memory_saver,
            own=True,
            gpus=launch.gpus,
            timeouts=timeouts,
        )
        yield ServedEngine(rank, server, process)
