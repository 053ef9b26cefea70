"""Open all that rollouts need: tokenizer, renderer, journal, uploads, circuit breaker, and the client of OpenReward.

The journal is in `rollout.journal`, else in the run's folder. A trainer's worker keeps one `SharedState` for its
process and a `Runtime` for each event loop; a program with one event loop uses `open_runtime`. The module knows no
engine and no trainer.
"""

from __future__ import annotations

import asyncio
import atexit
import gc
from collections.abc import AsyncGenerator, Coroutine, Iterable
from contextlib import ExitStack, asynccontextmanager, closing, suppress
from functools import cache
from pathlib import Path
from typing import Any

from orl_core.config import RunConfig
from orl_core.errors import OrlError, boundary, first_error

from orl_rollout.edge.descriptors import raise_limit
from orl_rollout.edge.files import write_new
from orl_rollout.episodes.journal import Journal
from orl_rollout.episodes.uploader import Uploader
from orl_rollout.openreward import OpenRewardClient
from orl_rollout.openreward.open_sessions import OpenSessions
from orl_rollout.run_folder.contract import TOKENIZER
from orl_rollout.runtime.circuit_breaker import CircuitBreaker
from orl_rollout.runtime.runtime import Environments, Player, Runtime
from orl_rollout.tokenizer.tokenizer import open_renderer, open_tokenizer


class SharedState:
    """State that the event loops of one process share. Without a folder nothing is recorded or uploaded.

    What the process has loaded leaves garbage collection: see `spare_collector`.

    Raises:
        ConfigError: a setting that the checkpoint cannot obey, or uploads without a key.
        OrlError: the tokenizer cannot be used, or the journal cannot be opened.
    """

    def __init__(self, config: RunConfig, checkpoint: str, folder: str | Path, group_size: int) -> None:
        raise_limit()
        self.config = config
        self.tokenizer = open_tokenizer(config, checkpoint)
        self.renderer = open_renderer(config, self.tokenizer)
        self.breaker = CircuitBreaker(
            max_error_rate=config.rollout.max_error_rate, group_size=group_size, patience=config.rollout.patience
        )
        self.journal: Journal | None = None
        self.open_sessions: OpenSessions | None = None
        with ExitStack() as opening:
            if folder := config.rollout.journal or folder:
                opening.enter_context(Uploader(folder, config))  # closed last: it sends what the journal holds
                self.journal = opening.enter_context(Journal(folder))
                self.open_sessions = opening.enter_context(closing(OpenSessions(folder, config.trainer.load)))
                # Next to the journal, unless another process has written it: readers of ids need no checkpoint then.
                with boundary(OrlError, f"writing the tokenizer into {folder}"), suppress(FileExistsError):
                    write_new(Path(folder) / TOKENIZER, self.tokenizer.file())
            self._opened = opening.pop_all()
        spare_collector()

    def runtime(self, client: Environments, player: Player | None = None) -> Runtime:
        """Make the runtime of the event loop that `client` belongs to. `player` as in `Runtime`."""
        return Runtime(
            self.config,
            renderer=self.renderer,
            client=client,
            journal=self.journal,
            breaker=self.breaker,
            player=player,
        )

    def close(self) -> None:
        """Close the journal and send what it holds. A process that is killed instead loses no record and no session."""
        self._opened.close()


@cache
def spare_collector() -> None:
    """Take what is loaded out of garbage collection, once for the process, as SGLang does.

    A full collection walks all objects of the trainer and its imports, and the event loop waits. The last one, at the
    end of the process, has to see them: Triton's bindings print a page of leaks otherwise.
    """
    gc.collect()
    gc.freeze()
    atexit.register(gc.unfreeze)


@asynccontextmanager
async def open_runtime(
    config: RunConfig, checkpoint: str, folder: str | Path, group_size: int, player: Player | None = None
) -> AsyncGenerator[Runtime]:
    """Open a runtime on the current event loop; see `SharedState`. `group_size` is the number of rollouts of a task.

    `player` as in `Runtime`.
    """
    with closing(SharedState(config, checkpoint, folder, group_size)) as state:
        async with OpenRewardClient(config, state.open_sessions) as client:
            yield state.runtime(client, player)


async def run_all(plays: Iterable[Coroutine[Any, Any, None]], concurrency: int) -> None:
    """Run all `plays`, `concurrency` at once; each is taken from the iterable when its turn comes."""
    waiting = iter(plays)

    async def worker() -> None:
        for play in waiting:
            await play

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(concurrency):
                group.create_task(worker())
    except BaseExceptionGroup as errors:
        raise first_error(errors) from errors
