"""The engine behind the stand-in for SGLang: its model, requests in time, prefix cache and weight version.

It answers a `GenerateRequest` and knows neither HTTP nor the bodies of its endpoints.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence
from typing import Any

from orl_testing.sglang.checksums import checksums_of
from orl_testing.sglang.faults import Fault, FaultKind
from orl_testing.sglang.model import OUTPUT_HEADROOM, Policy, PrefixCache, Score, cut, logprobs_of
from orl_testing.sglang.scheduler import Scheduler, Task
from orl_testing.sglang.wire import GenerateRequest, Refused, ServedGeneration


class ServedModel:
    """A scripted model and its state; `SglangServer` explains the arguments and adds HTTP."""

    headroom = OUTPUT_HEADROOM

    def __init__(self, policy: Policy | Iterable[Sequence[int]], *, context_tokens: int, token_seconds: float) -> None:
        self._policy = policy if callable(policy) else _in_order(policy)
        self._cache = PrefixCache()
        self._scheduler = Scheduler()
        self._token_seconds = token_seconds
        self.context_tokens = context_tokens
        self.url = ""
        self.weight_version = "default"
        self.weights: list[str] = []  # folders and buckets that weights were loaded from, in order
        self.checksums: tuple[dict[str, str], ...] = ()  # of each rank; it may be set
        self.gpus = 1  # it may be set
        self.released: set[str] = set()  # tags of memory that was given back; requests fail until it is taken again
        self.gpu_busy = False  # kernels of answered requests may still read weights and KV cache
        self.score: Score = logprobs_of  # of ids after a prompt; it may be set
        self.disconnected = 0  # requests whose client went away before the answer
        self.prompt_tokens = 0  # of the requests that began to run, and how many of these ids the cache held
        self.cached_tokens = 0

    @property
    def running(self) -> int:
        """The number of requests that wait for their answer."""
        return self._scheduler.running + self._scheduler.waiting

    @property
    def waiting(self) -> int:
        """The number of requests that wait for a slot."""
        return self._scheduler.waiting

    @property
    def paused(self) -> bool:
        """Tell whether it is paused."""
        return self._scheduler.paused

    async def until_running(self, count: int) -> None:
        """Wait until exactly `count` requests wait for their answer."""
        await self._scheduler.until(count)

    def update_weights(self, version: str) -> None:
        """Set the weight version and empty the prefix cache. Running requests report the new version."""
        self.weight_version = version
        self._cache = PrefixCache()

    async def update_idle(self, version: str) -> None:
        """Update the weights as SGLang does: wait for running requests unless they are paused; hold new ones."""
        async with self._scheduler.update():
            self.update_weights(version)

    def load(self, folder: str) -> None:
        """Take the weights in `folder`, and their checksums, unless `weights` does not keep the folder."""
        taken = len(self.weights)
        self.weights.append(folder)
        if len(self.weights) > taken:
            checksums = checksums_of(folder)
            self.checksums = (checksums,) if checksums else ()

    def flush_cache(self) -> bool:
        """Empty the prefix cache. Return False, and do nothing, if requests run or wait."""
        if not self.running:
            self._cache = PrefixCache()
        return not self.running

    def abort(self, rid: str | None = None) -> None:
        """End running requests whose id starts with the known `rid`, or all. They return their ids so far."""
        self._scheduler.abort(rid)

    def pause(self) -> None:
        """Stop sampling until `resume`. Running requests keep their ids; new ones wait."""
        self._scheduler.pause()

    def resume(self) -> None:
        """Continue after a pause."""
        self._scheduler.resume()

    async def sample(self, request: GenerateRequest, fault: Fault | None) -> ServedGeneration:
        """Wait for the time that sampling takes. Return the ids, cut where the request is aborted."""
        if request.rid in self._scheduler:
            raise Refused(400, f"Duplicate request ID detected: {request.rid}")
        if self.released:
            raise Refused(500, f"memory is released: {', '.join(sorted(self.released))}")
        prompt, started = request.input_ids, time.monotonic()
        room = self.context_tokens - self.headroom - len(prompt)
        ids, finish = cut(self._policy(prompt, request.sampling_params), request.sampling_params, room)
        try:
            async with self._scheduler.slot(request.rid) as task:
                cached = min(self._cache.match(prompt), len(prompt) - 1)
                generated = await self._made(task, len(ids), fault)
        except asyncio.CancelledError:
            self.disconnected += 1
            raise
        if generated is not None:
            ids, finish = (
                ids[:generated],
                {"type": "abort", "message": "Aborted", "status_code": None, "err_type": None},
            )
        self.prompt_tokens += len(prompt)
        self.cached_tokens += cached
        self._cache.add(prompt + ids)
        self.gpu_busy = True
        return ServedGeneration(
            token_ids=ids,
            logprobs=self.score(prompt, ids),
            finish_reason=finish,
            cached=cached,
            seconds=time.monotonic() - started,
            weight_version=self.weight_version,
        )

    async def _made(self, task: Task, count: int, fault: Fault | None) -> int | None:
        """Wait until `count` ids are generated. Return None, or after an abort the number of ids."""
        if fault and fault.kind is FaultKind.ABORT:
            return fault.tokens
        if fault and fault.kind is FaultKind.HANG:
            await self._scheduler.work(task, float("inf"))
            return fault.tokens
        done = await self._scheduler.work(task, count * self._token_seconds)
        if done is None:
            return None
        return int(done / self._token_seconds) if self._token_seconds else 0


def _in_order(script: Iterable[Sequence[int]]) -> Policy:
    """Return a policy that gives the answers of `script` in order, for any request."""
    answers = iter(script)

    def policy(ids: list[int], sampling: dict[str, Any]) -> Sequence[int]:
        for answer in answers:
            return answer
        raise Refused(400, "the script has no answer left")

    return policy
