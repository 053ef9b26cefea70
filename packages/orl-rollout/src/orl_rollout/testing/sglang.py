"""A stand-in for SGLang on loopback, at token level: a scripted model behind the wire shapes of SGLang 0.5.12.

It serves what rollout code and trainers ask of an engine or a router, makes requests fail on demand (`Fault`) and keeps
what it was sent. It must not know the engine client, so that the two can disagree. Streams, several samples, stop
strings (there is no tokenizer) and penalties are not modelled; asking for the first three is answered 400.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import msgspec
from aiohttp import web
from msgspec import Struct

from orl_rollout.testing.sglang_wire import (
    Fault,
    FaultKind,
    PrefixCache,
    Refused,
    Request,
    Sampled,
    cut,
    read_request,
    write_answer,
)

Policy = Callable[[list[int], dict[str, Any]], Sequence[int]]
REQUESTS_KEPT = 1024
BACKLOG = 4096  # connections of a thousand rollouts that begin at once


class Recorded(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One /generate request as it came in; `headers` may be read in any case."""

    index: int
    body: dict[str, Any]
    headers: Mapping[str, str]


class SglangServer:
    """An SGLang server with one scripted model, used as `async with`; `url` is set inside.

    Args:
        policy: from (input_ids, sampling_params) to the ids that the model goes on with, or the answers in order of
            arrival. Where it ends before a stop token or the length, it counts as having sampled its end of sequence.
        faults: the first that fits a request is taken.
        context_tokens: longer requests are refused, as SGLang does.
        token_seconds: the time that sampling one id takes; requests do not slow each other down.
        port: 0 takes a free one.
    """

    def __init__(
        self,
        policy: Policy | Iterable[Sequence[int]],
        *,
        faults: Sequence[Fault] = (),
        context_tokens: int = 32768,
        token_seconds: float = 0.0,
        port: int = 0,
    ) -> None:
        self._policy = policy if callable(policy) else _in_order(policy)
        self._faults = tuple(faults)
        self._context_tokens = context_tokens
        self._token_seconds = token_seconds
        self._port = port
        self._cache = PrefixCache()
        self._running: dict[str, asyncio.Event] = {}
        self._changed = asyncio.Event()
        self._runner: web.AppRunner | None = None
        self.url = ""
        self.weight_version = "default"
        self.requests: deque[Recorded] = deque(maxlen=REQUESTS_KEPT)
        self.received = 0
        self.disconnected = 0  # requests whose client went away before the answer

    async def __aenter__(self) -> Self:
        app = web.Application(client_max_size=1 << 30)
        app.router.add_post("/generate", self._generate)
        app.router.add_post("/abort_request", self._abort_request)
        app.router.add_route("*", "/flush_cache", self._flush_cache)
        app.router.add_get("/workers", self._workers)
        app.router.add_get("/health", self._health)
        app.router.add_get("/health_generate", self._health)
        app.router.add_get("/model_info", self._model_info)
        app.router.add_get("/v1/loads", self._loads)
        self._runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=0.05)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self._port, backlog=BACKLOG).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    @property
    def running(self) -> int:
        """How many /generate requests wait for their answer."""
        return len(self._running)

    async def until_running(self, count: int) -> None:
        """Wait until exactly `count` /generate requests wait for their answer."""
        while len(self._running) != count:
            await self._changed.wait()

    def update_weights(self, version: str) -> None:
        """Become a new version of the model: the prefix cache is empty, running requests report the new version."""
        self.weight_version = version
        self._cache = PrefixCache()

    def abort(self, rid: str | None = None) -> None:
        """End the running requests whose id starts with `rid` (a known one), or all: they return what they have."""
        if rid is None or rid in self._running:
            for name, aborted in self._running.items():
                if rid is None or name.startswith(rid):
                    aborted.set()

    async def _generate(self, http: web.Request) -> web.StreamResponse:
        try:
            return await self._serve(http)
        except Refused as refused:
            return web.json_response(refused.body, status=refused.status)

    async def _serve(self, http: web.Request) -> web.StreamResponse:
        try:
            body: dict[str, Any] = msgspec.json.decode(await http.read(), type=dict[str, Any])
        except msgspec.DecodeError as exc:
            raise Refused(400, str(exc)) from exc
        fault = next((fault for fault in self._faults if fault.at in (None, self.received)), None)
        self.requests.append(Recorded(index=self.received, body=body, headers=http.headers))
        self.received += 1
        if fault and fault.kind is FaultKind.STATUS:
            raise Refused(fault.status, fault.message)
        if fault and fault.kind is FaultKind.RESET:
            return _reset(http)
        request = read_request(body, self._context_tokens)
        sampled = await self._sample(request, fault)
        answer = write_answer(request, sampled, self.weight_version, fault.kind if fault else None)
        if fault and fault.kind is FaultKind.RESET_MID_BODY:
            response = web.StreamResponse(headers={"Content-Length": str(len(answer))})
            await response.prepare(http)
            await response.write(answer[: len(answer) // 2])
            return _reset(http)
        return web.Response(body=answer, content_type="application/json")

    async def _sample(self, request: Request, fault: Fault | None) -> Sampled:
        """Take the time that sampling takes; the ids made, cut where the request is aborted."""
        if request.rid in self._running:
            raise Refused(400, f"Duplicate request ID detected: {request.rid}")
        prompt, started = request.input_ids, time.monotonic()
        policy_ids = self._policy(prompt, request.sampling_params)
        ids, finish = cut(policy_ids, request.sampling_params, self._context_tokens - len(prompt))
        cached = min(self._cache.match(prompt), len(prompt) - 1)
        self._cache.add(prompt)
        self._running[request.rid] = aborted = asyncio.Event()
        self._notify()
        try:
            made = await self._wait(aborted, len(ids), fault)
        except asyncio.CancelledError:
            self.disconnected += 1
            raise
        finally:
            del self._running[request.rid]
            self._notify()
        if made is not None:
            ids, finish = ids[:made], {"type": "abort", "message": "Aborted", "status_code": None, "err_type": None}
        self._cache.add(prompt + ids)
        return Sampled(ids=ids, finish_reason=finish, cached=cached, seconds=time.monotonic() - started)

    def _notify(self) -> None:
        """Wake who waits for the number of running requests."""
        self._changed.set()
        self._changed = asyncio.Event()

    async def _wait(self, aborted: asyncio.Event, count: int, fault: Fault | None) -> int | None:
        """Wait until `count` ids are made. None, or after an abort how many there are."""
        if fault and fault.kind is FaultKind.ABORT:
            return fault.tokens
        if fault and fault.kind is FaultKind.HANG:
            await aborted.wait()
            return fault.tokens
        if not self._token_seconds:
            return None
        started = time.monotonic()
        try:
            async with asyncio.timeout(count * self._token_seconds):
                await aborted.wait()
        except TimeoutError:
            return None
        return int((time.monotonic() - started) / self._token_seconds)

    async def _abort_request(self, http: web.Request) -> web.Response:
        body: dict[str, Any] = msgspec.json.decode(await http.read(), type=dict[str, Any])
        self.abort(None if body.get("abort_all") else body.get("rid", ""))
        return web.Response()

    async def _flush_cache(self, http: web.Request) -> web.Response:
        if self._running:
            return web.Response(status=400, text="Cache not flushed: requests are running.\n")
        self._cache = PrefixCache()
        return web.Response(text="Cache flushed.\n")

    async def _workers(self, http: web.Request) -> web.Response:
        worker = {"id": self.url, "url": self.url, "model_id": "stand-in", "is_healthy": True, "load": self.running}
        stats = {"prefill_count": 0, "decode_count": 0, "regular_count": 1}
        return web.json_response({"workers": [worker], "total": 1, "stats": stats})

    async def _health(self, http: web.Request) -> web.Response:
        return web.Response()

    async def _model_info(self, http: web.Request) -> web.Response:
        info = {"model_path": "stand-in", "is_generation": True, "weight_version": self.weight_version}
        return web.json_response(info)

    async def _loads(self, http: web.Request) -> web.Response:
        load = {"num_running_reqs": self.running, "num_waiting_reqs": 0, "num_total_reqs": self.running}
        total = {"total_running_reqs": self.running, "total_waiting_reqs": 0, "total_reqs": self.running}
        return web.json_response({"dp_rank_count": 1, "loads": [{"dp_rank": 0, **load}], "aggregate": total})


def _in_order(script: Iterable[Sequence[int]]) -> Policy:
    """A policy that gives the answers of `script` one after the other, whatever it is asked."""
    answers = iter(script)

    def policy(ids: list[int], sampling: dict[str, Any]) -> Sequence[int]:
        for answer in answers:
            return answer
        raise Refused(400, "the script has no answer left")

    return policy


def _reset(http: web.Request) -> web.StreamResponse:
    """Break the connection; what is returned reaches nobody."""
    if http.transport is not None:
        http.transport.abort()
    return web.Response()
