"""slime's fully asynchronous rollout (case 10): a worker with a loop of its own, apart from the loop that evaluates."""

from __future__ import annotations

import asyncio
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from orl_cluster.hooks.worker import aclose
from orl_core.errors import RunAborted
from orl_slime.probe import FILTERS
from orl_testing import Fault, FaultKind, SglangServer

from tests.slime import episode
from tests.slime.host import features, of_slime
from tests.slime.playing import Hosted, hosting

pytestmark = pytest.mark.slime
ASYNC: dict[str, Any] = {"rollout_function_path": "slime.rollout.fully_async_rollout.generate_rollout_fully_async"}


class Source:
    """slime's data source as the worker sees it: it learns the worker's loop, and what comes back aborted.

    Where it has a `limit`, it gives so many groups: one at first, the others once that has come back. More at once
    would wait for slime's semaphore, which then belongs to the worker's loop, and no evaluation may wait for it.
    """

    def __init__(self, source: Any, *, limit: int) -> None:
        self._source = source
        self._limit = limit
        self._given = 0
        self.loop: asyncio.AbstractEventLoop | None = None
        self.returned: list[Any] = []
        self._closing: asyncio.Task[None] | None = None

    def get_samples(self, count: int) -> list[list[Any]]:
        if self.loop is None:
            self.loop = asyncio.get_running_loop()
            self._closing = self.loop.create_task(self._close_at_the_end())
        if self._limit and self._given == (self._limit if self.returned else 1):
            return []
        self._given += count
        return self._source.get_samples(count)

    def add_samples(self, groups: list[list[Any]]) -> None:
        GenerateState = of_slime("slime.rollout.sglang_rollout.GenerateState")

        self.returned += [sample.status.value for group in groups for sample in group]
        GenerateState(None).reset()  # the host's flag goes down before its worker draws again
        self._source.add_samples(groups)

    async def _close_at_the_end(self) -> None:
        try:
            await asyncio.Event().wait()
        finally:  # the worker's loop cancels what is left on it
            await aclose()


@contextmanager
def working(host: Any, *, limit: int = 0) -> Iterator[Source]:
    """The source of `host`, watched, and no worker left behind."""
    fully_async_rollout = of_slime("slime.rollout.fully_async_rollout")

    source = host.source = Source(host.source, limit=limit)
    try:
        yield source
    finally:
        worker = fully_async_rollout._global_worker
        fully_async_rollout._stop_global_worker()
        if worker is not None and worker.worker_thread is not None:
            worker.worker_thread.join(40)
            assert not worker.worker_thread.is_alive()


async def test_10_two_loops_have_own_clients_and_aborted_is_reset(hosted: Hosted, tmp_path: Path):
    with (
        hosted(hosting, [Fault(kind=FaultKind.HANG, at=0)], **ASYNC, rollout_batch_size=1) as (host, server),
        working(host, limit=2) as source,
    ):
        GenerateState = of_slime("slime.rollout.sglang_rollout.GenerateState")
        get_async_loop = of_slime("slime.utils.async_utils.get_async_loop")

        playing = asyncio.create_task(asyncio.to_thread(host.rollout))
        await asyncio.wait_for(asyncio.to_thread(_wait_for_a_request, server), 30)
        GenerateState(host.args).aborted = True
        await asyncio.to_thread(_abort, server.url)
        groups = await asyncio.wait_for(playing, 60)
        data = host.train_data(groups)
        host.log(groups)
        host.hold_out("held_out", tmp_path / "tasks.jsonl")
        evaluated = await asyncio.to_thread(host.evaluate)
        assert source.loop is not get_async_loop().loop
    assert "aborted" in source.returned
    (group,) = groups
    assert [sample.index for sample in group] == [0, 1]
    assert {sample.status.value for sample in group} <= {"completed", "truncated"}
    assert all(sum(mask) for mask in data["loss_masks"])
    assert len(evaluated["held_out"]["rewards"]) == 16


async def test_10_a_filter_is_obeyed_where_our_probe_says_so(hosted: Hosted):
    """An older slime does not, and the launcher refuses the option: without signal, the group trains."""
    refusal = Fault(kind=FaultKind.STATUS, status=400, message="no", at=0)
    flags = {"dynamic_sampling_filter_path": "orl_slime.hooks.has_signal", "sglang_server_concurrency": 2}
    with hosted(hosting, [refusal], **ASYNC, **flags) as (host, _), working(host):
        groups = await asyncio.wait_for(asyncio.to_thread(host.rollout), 60)
        data = host.train_data(groups)
    obeys = FILTERS in features()
    assert (host.metrics or {}).get("rollout/dynamic_filter/drop_too_few_train", 0) == obeys
    assert all(any(mask) for mask in data["loss_masks"]) == obeys


async def test_10_a_dead_environment_ends_a_run_whose_worker_swallows_exceptions(hosted: Hosted):
    dead = episode.settings("http://127.0.0.1:9")
    with (
        hosted(hosting, config=dead, **ASYNC, sglang_server_concurrency=32, rollout_batch_size=8) as (host, _),
        working(host),
        pytest.raises(RunAborted, match="of the last 64 rollouts ended in ERROR"),
    ):
        await asyncio.wait_for(asyncio.to_thread(_train, host, 12), 120)


def _train(host: Any, steps: int) -> None:
    for rollout_id in range(steps):
        host.log(host.rollout(rollout_id))


def _wait_for_a_request(server: SglangServer) -> None:
    while not server.requests:
        time.sleep(0.05)


def _abort(url: str) -> None:
    request = urllib.request.Request(
        f"{url}/abort_request", data=b'{"abort_all": true}', headers={"Content-Type": "application/json"}
    )
    urllib.request.urlopen(request, timeout=10).close()
