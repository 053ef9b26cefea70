"""The results of the stand-in for Tinker: work on torch's thread, each done once and kept until it is asked for.

A fault of the work is one of the stand-in's own, and nobody repeats it: its result is `user`, with the traceback.
"""

# pyright: basic
# the SDK's messages are typed in part
from __future__ import annotations

import asyncio
import traceback
from collections import defaultdict
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from aiohttp import web
from tinker.proto import tinker_public_pb2 as wire

POLL_SECONDS = 20.0  # that the answer to a poll for a result may wait
PROTOBUF = "application/x-protobuf"
Result = asyncio.Future[web.Response]


def trace_of(fault: BaseException) -> str:
    """Return the traceback of `fault` as text."""
    return "".join(traceback.format_exception(fault))


class Results:
    """The results of requests by their names."""

    def __init__(self) -> None:
        self._by_name: dict[str, Result] = {}
        self._turns: dict[str, dict[int, Callable[[], None]]] = defaultdict(dict)
        self._next: dict[str, int] = defaultdict(lambda: 1)
        self._torch = ThreadPoolExecutor(1, thread_name_prefix="tinker-torch")
        self._tasks: set[asyncio.Task[None]] = set()

    async def close(self) -> None:
        """Cancel what runs, and end torch's thread."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._torch.shutdown()

    def forget(self) -> None:
        """Forget all results, also those of work that runs."""
        self._by_name.clear()

    def opened(self, name: str) -> Result | None:
        """Return a new result of this name; None if there is one."""
        if name in self._by_name:
            return None
        self._by_name[name] = result = asyncio.get_running_loop().create_future()
        return result

    def do(self, name: str, work: Callable[[], Any]) -> None:
        """Do `work` once for each name."""
        if result := self.opened(name):
            self.begin(self.finish([result], lambda: [work()]))

    def do_in_turn(self, model_id: str, seq_id: int, work: Callable[[], Any]) -> str:
        """Do `work` after that of all earlier requests of the model. Return its name."""
        name = f"{model_id}:{seq_id}"
        if result := self.opened(name):
            self._turns[model_id][seq_id] = lambda: self.begin(self.finish([result], lambda: [work()]))
            while begin := self._turns[model_id].pop(self._next[model_id], None):
                self._next[model_id] += 1
                begin()
        return name

    async def finish(self, results: list[Result], work: Callable[[], list[Any]]) -> None:
        """Do `work` on torch's thread, and answer each of `results`."""
        done = asyncio.get_running_loop().run_in_executor(self._torch, work)
        await asyncio.wait((done,))
        fault = done.exception()
        failed = {"error": trace_of(fault), "category": "user"} if fault else None
        for result, answer in zip(results, [failed] * len(results) if failed else done.result(), strict=True):
            if isinstance(answer, wire.ForwardBackwardOutput | wire.SampleResponse):
                result.set_result(web.Response(body=answer.SerializeToString(), content_type=PROTOBUF))
            else:
                result.set_result(web.json_response(answer))

    async def wait(self, name: str) -> web.Response | dict[str, Any] | None:
        """Return the result of this name, or that the client is to ask again; None if there is none."""
        result = self._by_name.get(name)
        if result is None:
            return None
        try:
            answer = await asyncio.wait_for(asyncio.shield(result), POLL_SECONDS)
        except TimeoutError:
            return {"type": "try_again", "request_id": name, "queue_state": "active"}
        return web.Response(body=answer.body, content_type=answer.content_type)

    def begin(self, work: Coroutine[Any, Any, None]) -> None:
        """Run `work` next to what runs."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
