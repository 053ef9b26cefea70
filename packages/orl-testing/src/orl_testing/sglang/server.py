"""A stand-in for SGLang on loopback, at token level: a scripted model behind the wire shapes of SGLang 0.5.12.

It serves what rollout code and trainers ask of an engine or a router: generation with stop ids, aborts and pauses,
weight versions, a prefix cache. It takes `token_seconds` for each id, makes requests fail on demand and
keeps what it was sent. It must not know the engine client, so that the two can disagree. Streams, several samples and
stop strings are answered 400; penalties and `min_new_tokens` do not change what the script says.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import msgspec
from aiohttp import web
from msgspec import Struct

from orl_testing.sglang.control import control_routes
from orl_testing.sglang.engine import ServedModel
from orl_testing.sglang.faults import Fault, FaultKind, FaultPlan, scripted_faults
from orl_testing.sglang.model import Policy
from orl_testing.sglang.wire import GenerateRequest, Refused, ServedGeneration, read_request, write_answer

REQUESTS_KEPT = 1024
BACKLOG = 4096  # connections of a thousand rollouts that begin at once


class Recorded(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One /generate request as it came in; `headers` may be read in any case."""

    index: int
    body: dict[str, Any]
    headers: Mapping[str, str]


class SglangServer(ServedModel):
    """An SGLang server with one scripted model, used as `async with`; `url` is set inside.

    Args:
        policy: from (input_ids, sampling_params) to the ids that the model continues with, or the answers in order of
            arrival. Where it ends before a stop or the length, it counts as having sampled its end of sequence.
        faults: the first that fits a request is taken; or a plan, such as `seeded_faults` makes.
        context_tokens: longer requests are refused, as SGLang does.
        token_seconds: the time that sampling one id takes.
        decode: the text of ids, for the `text` of answers; in decimal without it.
        port: 0 takes a free one.
    """

    def __init__(
        self,
        policy: Policy | Iterable[Sequence[int]],
        *,
        faults: Sequence[Fault] | FaultPlan = (),
        context_tokens: int = 32768,
        token_seconds: float = 0.0,
        decode: Callable[[Sequence[int]], str] | None = None,
        port: int = 0,
    ) -> None:
        self.decode = decode
        super().__init__(policy, context_tokens=context_tokens, token_seconds=token_seconds)
        self._plan = faults if callable(faults) else scripted_faults(faults)
        self._port = port
        self._runner: web.AppRunner | None = None
        self.socket = ""  # the path of one on this machine, which it may take instead of a port
        self._site: web.TCPSite | web.UnixSite | None = None
        self._rising: asyncio.Task[None] | None = None
        self.requests: deque[Recorded] = deque(maxlen=REQUESTS_KEPT)
        self.received = 0

    async def __aenter__(self) -> Self:
        app = web.Application(client_max_size=1 << 30)
        app.router.add_routes(self.routes())
        self._runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=0.05)
        await self._runner.setup()
        await self.up()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._rising is not None:
            self._rising.cancel()
            await asyncio.wait([self._rising])
        if self._runner is not None:
            await self._runner.cleanup()

    def routes(self) -> list[web.RouteDef]:
        """Return every endpoint."""
        return [web.post("/generate", self.generated), *control_routes(self)]

    def read(self, body: dict[str, Any]) -> GenerateRequest:
        """Read the body of a request for ids."""
        return read_request(body, self.context_tokens)

    def write(self, request: GenerateRequest, sampled: ServedGeneration, kind: FaultKind | None) -> bytes:
        """Return the body of an answer, with the damage that `kind` asks for."""
        return write_answer(request, sampled, kind, self.decode)

    @property
    def connections(self) -> int:
        """Count the connections that are open."""
        server = self._runner and self._runner.server
        return len(server.connections) if server else 0

    async def up(self) -> None:
        """Take connections, at the same address as before."""
        if self._runner is None or self._site is not None:
            return
        if self.socket:
            self._site, self.url = web.UnixSite(self._runner, self.socket, backlog=BACKLOG), f"unix:{self.socket}"
            await self._site.start()
            return
        self._site = web.TCPSite(self._runner, "127.0.0.1", self._port, backlog=BACKLOG)
        await self._site.start()
        self._port = int(self._runner.addresses[-1][1])
        self.url = f"http://127.0.0.1:{self._port}"

    async def down(self) -> None:
        """Die: break every connection and refuse new ones, until `up`."""
        if self._runner is None or self._site is None:
            return
        site, self._site = self._site, None
        await site.stop()
        server = self._runner.server
        for connection in server.connections if server else ():
            if connection.transport is not None:
                connection.transport.abort()

    async def generated(self, http: web.Request) -> web.StreamResponse:
        """Answer a request for ids."""
        try:
            return await self._serve(http)
        except Refused as refused:
            return web.json_response(refused.body, status=refused.status)

    async def _serve(self, http: web.Request) -> web.StreamResponse:
        if http.content_type != "application/json":  # as FastAPI, which reads no other body
            raise Refused(422, "the body is not application/json")
        try:
            body: dict[str, Any] = msgspec.json.decode(await http.read(), type=dict[str, Any])
        except msgspec.DecodeError as exc:
            raise Refused(400, str(exc)) from exc
        fault = self._plan(self.received)
        self.requests.append(Recorded(index=self.received, body=body, headers=http.headers))
        self.received += 1
        if fault and fault.kind is FaultKind.STATUS:
            raise Refused(fault.status, fault.message)
        if fault and fault.kind is FaultKind.RESET:
            return _reset(http)
        if fault and fault.kind is FaultKind.DOWN:
            if fault.seconds is not None:
                self._rising = asyncio.create_task(self._rise(fault.seconds))
            await self.down()
            return web.Response()
        request = self.read(body)
        answer = self.write(request, await self.sample(request, fault), fault.kind if fault else None)
        if fault and fault.kind is FaultKind.RESET_MID_BODY:
            response = web.StreamResponse(headers={"Content-Length": str(len(answer))})
            await response.prepare(http)
            await response.write(answer[: len(answer) // 2])
            return _reset(http)
        return web.Response(body=answer, content_type="application/json")

    async def _rise(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        await self.up()


def _reset(http: web.Request) -> web.StreamResponse:
    """Break the connection; what is returned reaches nobody."""
    if http.transport is not None:
        http.transport.abort()
    return web.Response()
