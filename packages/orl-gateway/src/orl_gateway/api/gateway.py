"""The gateway's HTTP server: a URL for each episode, answers in one piece or streamed, keepalives.

The URLs are `/s/{token}/v1/...` and `/s/{token}/mcp`, on loopback unless `host` says otherwise. The token is
unguessable and opens one episode. It is the API key too, for clients that keep no path. An answer is generated whole
and streamed afterwards. Until it is there, a stream gets keepalives. There is no log, so that no token is in one. A
request to a path that is not served is noted in its episode.
"""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Self

from aiohttp import web
from aiohttp.typedefs import Handler
from orl_core.errors import OrlError, boundary

from orl_gateway.api import mcp
from orl_gateway.dialects.anthropic import ANTHROPIC
from orl_gateway.dialects.chat import CHAT
from orl_gateway.dialects.client_api import ClientApi, models_body
from orl_gateway.dialects.exchange import ModelRequest, Reply, RequestRefused
from orl_gateway.dialects.responses import RESPONSES
from orl_gateway.episode.episode import Episode

LARGEST_REQUEST = 64 << 20  # bytes
KEEPALIVE_SECONDS = 10.0  # of silence, after which a stream begins before its answer is there
SHUTDOWN_SECONDS = 1.0  # that requests under way may take when the server ends: their episodes have ended
BACKLOG = 4096  # connections that wait to be accepted: a batch of rollouts begins at one moment
_APIS = {"/chat/completions": CHAT, "/responses": RESPONSES, "/messages": ANTHROPIC}
_SERVED = ", ".join((*(f"/v1{path}" for path in _APIS), "/v1/models", "/mcp"))
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
# Every escape, so that the `u` behind an escaped backslash is not one. The first group is kept.
_ESCAPE = re.compile(rb"(\\(?:[^u]|u(?![dD][89a-fA-F])|u[dD][89abAB]\w\w\\u[dD][c-fC-F]\w\w))|\\u[dD][89a-fA-F]\w\w")


class Gateway:
    """A server of episodes on the current event loop. `async with` starts and stops it.

    `host` is the interface, `port` 0 takes a free one. `keepalive` is in seconds. `routes` are served in addition.

    Raises:
        OrlError: on entry: the port cannot be bound.
    """

    def __init__(
        self,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        keepalive: float = KEEPALIVE_SECONDS,
        routes: Sequence[web.RouteDef] = (),
    ) -> None:
        self._host = host
        self._port = port
        self._keepalive = keepalive
        self._routes = routes
        self._episodes: dict[str, Episode] = {}

    async def __aenter__(self) -> Self:
        app = web.Application(middlewares=[self._served])
        for prefix in ("/s/{token}/v1", "/v1"):
            for path, api in _APIS.items():
                app.router.add_post(prefix + path, self._answers(api))
            app.router.add_post(f"{prefix}/messages/count_tokens", self._count)
            app.router.add_get(f"{prefix}/models", self._models)
        for path in ("/s/{token}/mcp", "/mcp"):
            app.router.add_post(path, self._tools)
        app.router.add_routes(self._routes)
        self._runner = web.AppRunner(
            app,
            access_log=None,
            handler_cancellation=True,
            shutdown_timeout=SHUTDOWN_SECONDS,
            auto_decompress=False,  # no encoded body is read
        )
        try:
            await self._runner.setup()
            with boundary(OrlError, f"binding {self._host}:{self._port}"):
                await web.TCPSite(self._runner, self._host, self._port, backlog=BACKLOG).start()
        except BaseException:
            await self._runner.cleanup()
            raise
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._runner.cleanup()

    @property
    def url(self) -> str:
        """Return the address, without a path."""
        host, port = self._runner.addresses[0][:2]
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    def add(self, episode: Episode, token: str | None = None) -> str:
        """Serve `episode`, and return its token: `token`, or a new one."""
        token = token or secrets.token_urlsafe(32)
        self._episodes[token] = episode
        return token

    def base_url(self, token: str) -> str:
        """Return the base URL of an episode, without `/v1`: Anthropic's clients add it, OpenAI's do not."""
        return f"{self.url}/s/{token}"

    def remove(self, token: str) -> None:
        """Serve the episode no longer: its token opens nothing."""
        self._episodes.pop(token, None)

    def _episode(self, request: web.Request) -> Episode:
        episode = self._episodes.get(token_of(request))
        if episode is None:
            raise RequestRefused("no episode has this token", code="unknown_token", status=401)
        return episode

    @web.middleware
    async def _served(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Send a refusal in the form of the API, also of a path or a method that is not served."""
        headers = {"x-should-retry": "false"}  # the same request is refused again
        try:
            try:
                return await handler(request)
            except (web.HTTPNotFound, web.HTTPMethodNotAllowed) as fault:
                if allowed := fault.headers.get("Allow"):
                    headers["Allow"] = allowed
                raise self._not_served(request, fault.status) from fault
        except RequestRefused as refusal:
            anthropic = "anthropic-version" in request.headers or "/v1/messages" in request.path
            api = ANTHROPIC if anthropic else CHAT  # the errors of OpenAI's two APIs are alike
            return web.json_response(api.error(refusal), status=refusal.status, headers=headers)

    def _not_served(self, request: web.Request, status: int) -> RequestRefused:
        """Return the refusal of a path, without a token in it, or of a method.

        It is noted: the agent may have meant the model.
        """
        token, hint = token_of(request), ""
        path = request.path.removeprefix(f"/s/{token}")
        path = path.replace(token, "[token]") if token else path
        if "/v1/v1" in path:
            hint = " Is `/v1` twice in your base URL?"
        elif path in _APIS:
            hint = " Does your base URL end in `/v1`?"
        text = f"{request.method} {path:.200} is not served. This gateway serves {_SERVED}.{hint}"
        refusal, state = RequestRefused(text, code="not_served", status=status), self._episode(request).state
        if request.method == "POST" and state.refusal is None:
            state.refusal = refusal
        return refusal

    def _answers(self, api: ClientApi) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        async def handler(http: web.Request) -> web.StreamResponse:
            episode = self._episode(http)
            retried = http.headers.get("x-stainless-retry-count", "0") != "0"
            try:
                try:
                    request = api.read(await read_whole(http), episode.history)
                except RequestRefused as refusal:
                    episode.state.refusal = refusal
                    raise
                async with episode.work.answer(request, partial(episode.ask, request), retried=retried) as answer:
                    return await self._deliver(http, api, request, answer)
            except ConnectionResetError:  # the client has left: aiohttp would log it as an error
                return web.Response()

        return handler

    async def _deliver(
        self, http: web.Request, api: ClientApi, request: ModelRequest, answer: asyncio.Future[Reply]
    ) -> web.StreamResponse:
        """Send the answer: in one piece, or as a stream that begins when there is something to send."""
        if not request.stream:
            response = web.json_response(api.body(await answer, request))
            await response.prepare(http)
            await response.write_eof()
            return response
        stream = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
        while not (await asyncio.wait((answer,), timeout=self._keepalive))[0]:
            await stream.prepare(http)
            await stream.write(api.keepalive)
        try:
            parts = [*map(api.encode, api.events(answer.result(), request)), api.end]
        except RequestRefused as refusal:
            if not stream.prepared:
                raise
            parts = [api.encode(api.error_event(refusal))]
        await stream.prepare(http)
        for part in parts:
            await stream.write(part)
        await stream.write_eof()
        return stream

    async def _count(self, http: web.Request) -> web.Response:
        episode = self._episode(http)
        tokens = await episode.count(ANTHROPIC.read(await read_whole(http), episode.history))
        return web.json_response({"input_tokens": tokens})

    async def _tools(self, http: web.Request) -> web.Response:
        """Answer a message of an MCP client. No other method is served: the server has nothing to say on its own."""
        episode = self._episode(http)
        mcp.refuse_foreign_page(http.headers.get("Origin"), self.url)
        answer = await mcp.answer(episode, await read_whole(http))
        return web.Response(status=202) if answer is None else web.json_response(answer)

    async def _models(self, http: web.Request) -> web.Response:
        return web.json_response(models_body(self._episode(http).model))


def token_of(request: web.Request) -> str:
    """Return the token in the path of a request, else its API key."""
    parts = request.path.split("/")
    return parts[2] if parts[:2] == ["", "s"] and len(parts) > 2 else key_of(request)


def key_of(request: web.Request) -> str:
    """Return the API key of a request, as OpenAI's or Anthropic's clients send it, or ""."""
    return request.headers.get("x-api-key") or request.headers.get("Authorization", "").removeprefix("Bearer ")


async def read_whole(http: web.Request) -> bytes:
    """Return the body of a request. `http.read()` does the same, with three copies of it instead of one."""
    if (encoding := http.headers.get("Content-Encoding", "identity")) != "identity":
        text = f"`Content-Encoding`: {encoding:.80} is not supported by this gateway: send the body as it is"
        raise RequestRefused(text, code="unsupported", status=415)
    blocks: list[bytes] = []
    size = 0
    async for block in http.content.iter_any():
        blocks.append(block)
        size += len(block)
        if size > LARGEST_REQUEST:
            raise RequestRefused(f"the request has more than {LARGEST_REQUEST} bytes: send less", status=413)
    return repaired(b"".join(blocks))


def repaired(body: bytes) -> bytes:
    """Return JSON in which half of an escaped surrogate pair is U+FFFD.

    Clients cut strings inside an emoji. The half stays in their history, so a refusal would repeat in every turn.
    """
    return _ESCAPE.sub(lambda escape: escape[1] or rb"\ufffd", body) if _SURROGATE.search(body) else body
