"""The gateway alone, in front of any SGLang: sessions of agents that bring their own tools, recorded to a journal.

Its key opens a session of its own, so that one agent needs nothing but the address and the key; further sessions begin
with POST /sessions and have tokens of their own. A session ends with DELETE, at its deadline, or with the gateway, and
is on disk then. There is no environment: a session's reward is what its end says.
"""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Self, cast

import msgspec
from aiohttp import web
from msgspec import Struct
from orl_core import OrlError, Renderer, RolloutSpec, RunConfig, StopReason, Task, ToolCall, ToolResult, boundary
from orl_rollout import Engine, Journal, Opening, Timeouts
from orl_rollout.edge import interrupt
from orl_rollout.edge.secrets import Scrubber
from orl_rollout.loop.loop import CLOSE_SECONDS
from orl_rollout.recognised_engine import RecognisedEngine
from orl_rollout.run_folder.config_file import write_config
from orl_rollout.run_folder.contract import GatewayAddress
from orl_rollout.runtime.judging import Judging
from orl_rollout.runtime.runtime import check_renderer
from orl_rollout.runtime.stack import SharedState

from orl_gateway.api.gateway import Gateway, key_of, read_whole
from orl_gateway.dialects.exchange import RequestRefused
from orl_gateway.episode.episode import Episode
from orl_gateway.episode.work import look_at

ENDING_SECONDS = CLOSE_SECONDS + 10.0  # for requests and the judgement of sessions that the end of the gateway ends
ENDED = 1024  # sessions whose outcome a repeated DELETE gets again


class OwnTools:
    """The Session of an agent with tools of its own: it has none. `reward` is what the end of the session says."""

    def __init__(self) -> None:
        self.reward: float | None = None

    async def open(self, task: Task) -> Opening:
        """Begin with nothing: the agent brings messages and tools."""
        del task
        return Opening(messages=(), tools=(), accepts_text_answer=True, judges_any_answer=True)

    async def call(self, call: ToolCall) -> ToolResult:
        """Refuse: there is no tool."""
        raise RequestRefused(f"there is no tool `{call.name}` here: the agent brings its own")

    async def answer(self, text: str) -> ToolResult:
        """End the episode with the reward."""
        del text
        return ToolResult(name="", reward=self.reward, finished=True)

    async def close(self) -> None:
        """Release nothing."""


class _End(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Body of the request that ends a session."""

    reward: float | None = None


class _Recorded(Struct, frozen=True, kw_only=True):
    """One session. `recording` returns a summary of its outcome when it is on disk."""

    episode: Episode
    own: OwnTools
    ended: asyncio.Event
    recording: asyncio.Task[dict[str, Any]]


class Recorder:
    """Sessions on the current event loop. `async with` serves them; at its end all are recorded.

    The key of `address` begins sessions, and opens one itself. `config` holds one environment, whose limits are those
    of a session.
    """

    def __init__(
        self, config: RunConfig, *, renderer: Renderer, engine: Engine, journal: Journal, address: GatewayAddress
    ) -> None:
        self._config = config
        self._key = address.key
        self._renderer = renderer
        self._engine = engine
        self.journal = journal
        self._judging = Judging(config, Scrubber.of(config), journal)
        (self._name,) = config.environments
        self._sessions: dict[str, _Recorded] = {}
        self._ended: dict[tuple[str, str], asyncio.Task[dict[str, Any]]] = {}  # by token and id, the newest ones
        self._running: set[asyncio.Task[dict[str, Any]]] = set()
        self._begun = 0
        self._closing = False
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        own = "/s/{token}"
        routes = [web.post("/sessions", self._post), web.get(own, self._get), web.delete(own, self._delete)]
        self.gateway = Gateway(address.host, address.port, routes=routes)

    async def __aenter__(self) -> Self:
        await self.gateway.__aenter__()
        await self.begin(self._key)
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._closing = True
        with interrupt.held():  # what was sampled is written
            for session in self._sessions.values():
                session.ended.set()
            with suppress(TimeoutError):  # what is late stays on disk as it was sampled
                async with asyncio.timeout(ENDING_SECONDS):
                    await asyncio.gather(*self._running, return_exceptions=True)
            await self.gateway.__aexit__(*exc)

    async def begin(self, token: str | None = None) -> str:
        """Begin a session and return its token: `token`, or a new one."""
        self._begun += 1
        task = Task(env_name=self._name, deployment_name=self._name, index=self._begun)
        job = RolloutSpec(
            task=task,
            rollout_id=f"session-{self._begun}",
            limits=self._config.limits(self._name),
            sampling={"temperature": self._config.eval.temperature, "top_p": self._config.eval.top_p},
        )
        own = OwnTools()
        episode = Episode(job, session=own, renderer=self._renderer, engine=self._engine)
        agents = self._config.agent_config
        episode.history.samples_forced_calls = agents is not None and agents.forced_calls == "sample"
        token, ended = self.gateway.add(episode, token), asyncio.Event()
        recording = asyncio.ensure_future(self._record(token, episode, ended))
        self._running.add(recording)
        recording.add_done_callback(self._done)
        self._sessions[token] = _Recorded(episode=episode, own=own, ended=ended, recording=recording)
        return token

    async def end(self, token: str, reward: float | None = None, id_: str = "") -> dict[str, Any]:
        """End a session, and return a summary of its outcome when it is on disk.

        `id_` names the session. The key needs it: the next session has the same key.
        """
        session = self._open(token)
        if token == self._key and not id_:
            raise RequestRefused("the key may have had other sessions. Name one: DELETE /s/KEY?session=ID, GET /s/KEY")
        if id_ not in ("", session.episode.job.rollout_id):
            raise RequestRefused(f"this token has no session `{id_:.80}`")
        session.own.reward = reward
        session.ended.set()
        return await asyncio.shield(session.recording)

    def _open(self, token: str) -> _Recorded:
        """Return an open session."""
        session = self._sessions.get(token)
        if session is None or session.ended.is_set():
            raise RequestRefused("no session has this token", code="unknown_token", status=401)
        return session

    async def _record(self, token: str, episode: Episode, ended: asyncio.Event) -> dict[str, Any]:
        """Keep a session open to its end, then judge and record it. The key opens another one when it ends."""
        async with episode:
            try:
                async with asyncio.timeout(episode.job.limits.rollout_timeout):
                    await ended.wait()
            except TimeoutError:
                episode.state.end(StopReason.TIMEOUT)
            self.gateway.remove(token)
            self._ended[token, episode.job.rollout_id] = self._sessions.pop(token).recording
            for oldest in [*self._ended][:-ENDED]:
                del self._ended[oldest]
            if token == self._key and not self._closing:
                await self.begin(token)
            await episode.work.close()
            await episode.finish()
        try:
            environment = self._config.environments[self._name]
            outcome = await self._judging.judge(episode.trajectory(), environment, recorded=episode.began)
        except OrlError as exc:
            if not self.failed.done():
                self.failed.set_exception(exc)
            raise RequestRefused(f"the session cannot be recorded: {exc}", status=500) from exc
        trajectory = outcome.trajectory  # which may be large, and is no part of the summary
        return {
            "id": trajectory.job.rollout_id,
            "ending": trajectory.ending,
            "error": trajectory.error,
            "reward": outcome.reward,
            "turns": len(trajectory.turns),
            "rows": len(outcome.datums),
            "sampled_tokens": sum(len(turn.action_ids) for turn in trajectory.turns),
        }

    def _done(self, recording: asyncio.Task[dict[str, Any]]) -> None:
        self._running.discard(recording)
        look_at(recording)

    async def _post(self, http: web.Request) -> web.Response:
        """Begin a session for who has the key."""
        if not secrets.compare_digest(os.fsencode(key_of(http)), self._key.encode()):
            raise RequestRefused("the key of the gateway begins sessions", code="unknown_token", status=401)
        if self._closing:
            raise RequestRefused("the gateway ends", status=503)
        token = await self.begin()
        url = self.gateway.base_url(token)
        id_ = self._sessions[token].episode.job.rollout_id
        session = {"id": id_, "base_url": f"{url}/v1", "anthropic_base_url": url, "api_key": token}
        return web.json_response(session, status=201)

    async def _get(self, http: web.Request) -> web.Response:
        """Return the id of the session that a token has now."""
        return web.json_response({"id": self._open(http.match_info["token"]).episode.job.rollout_id})

    async def _delete(self, http: web.Request) -> web.Response:
        """End a session, with its reward if the body has one. A repeated request gets the same answer."""
        token, id_ = http.match_info["token"], http.query.get("session", "")
        ended = {name: recording for (of, name), recording in self._ended.items() if of == token}
        if id_ in ended or (ended and token not in self._sessions):
            return web.json_response(await asyncio.shield(ended.get(id_) or [*ended.values()][-1]))
        self._open(token)
        body = await read_whole(http)
        with boundary(RequestRefused, "reading the body"):
            reward = msgspec.json.decode(body or b"{}", type=_End).reward
        return web.json_response(await self.end(token, reward, id_))


async def serve(config: RunConfig, folder: Path, address: GatewayAddress, announce: Callable[[str], None]) -> None:
    """Serve sessions until this is cancelled: the entry point `orl.gateways`. See `GatewayServer`."""
    async with recording(config, folder, address) as recorder:
        announce(recorder.gateway.url)
        await recorder.failed


@asynccontextmanager
async def recording(config: RunConfig, folder: Path, address: GatewayAddress) -> AsyncGenerator[Recorder]:
    """Open a recorder with its tokenizer, its journal in `folder` and its engine."""
    state = await asyncio.to_thread(SharedState, config, str(config.trainer.model), folder, 1)
    try:
        check_renderer(config, state.renderer)
        write_config(folder, config)
        journal = cast("Journal", state.journal)  # it has a folder
        tokens, timeouts = config.context_tokens, Timeouts(retry=config.rollout.patience)
        async with (
            RecognisedEngine(address.engine, context_tokens=tokens, timeouts=timeouts) as engine,
            Recorder(config, renderer=state.renderer, engine=engine, journal=journal, address=address) as recorder,
        ):
            yield recorder
    finally:
        await asyncio.to_thread(state.close)
