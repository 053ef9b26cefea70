"""An environment on several servers: sessions take turns, stay with theirs, and leave out a server that is away."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from math import inf
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from orl_core.config import decode_config
from orl_core.errors import SessionError
from orl_core.trajectory import StopReason
from orl_rollout.edge.http import HttpClient
from orl_rollout.openreward import OpenRewardClient, OpenRewardSession, client
from orl_rollout.openreward.client import open_listing
from orl_rollout.openreward.open_sessions import OpenSessions
from orl_rollout.results.outcome import Outcome
from orl_rollout.run_folder.environments import record_versions
from orl_rollout.runtime.circuit_breaker import CircuitBreaker
from orl_rollout.runtime.runtime import RolloutRequest, Runtime
from orl_testing import ScriptedEngine
from orl_testing import environments as envs
from orl_testing.environments.server import Served

from tests.kit.episodes import RENDERER, calling, config_of, model, task_of
from tests.kit.serving import free_port
from tests.rollout.openreward.test_open_sessions import lists_in, of_a_dead_process

pytestmark = pytest.mark.usefixtures("short_pauses")


class Fleet:
    """Servers of the gallery, each on its own port, which stop and start again."""

    def __init__(self, size: int) -> None:
        self._ports = [free_port() for _ in range(size)]
        self._serving = [ExitStack() for _ in range(size)]
        self.urls = [f"http://127.0.0.1:{port}" for port in self._ports]
        self.served: list[Served] = [self.start(number) for number in range(size)]

    def start(self, number: int) -> Served:
        gallery = envs.serve(envs.Echo, envs.Trouble, port=self._ports[number])
        return self._serving[number].enter_context(gallery)

    def stop(self, number: int) -> None:
        self._serving[number].close()

    def created(self) -> list[int]:
        return [served.count("/create") for served in self.served]


@contextmanager
def fleet(size: int = 2) -> Generator[Fleet]:
    servers = Fleet(size)
    try:
        yield servers
    finally:
        for number in range(size):
            servers.stop(number)


def client_of(servers: Fleet, listed: OpenSessions | None = None) -> OpenRewardClient:
    tree = {"gallery/Echo": {"base_url": servers.urls}, "gallery/Trouble": {"base_url": servers.urls}}
    return OpenRewardClient(decode_config({"environments": tree}, "test"), listed)


async def open_all(opened: OpenRewardClient, count: int) -> list[OpenRewardSession]:
    sessions = [opened.session(task_of("Echo", number)) for number in range(count)]
    for number, session in enumerate(sessions):
        await session.open(task_of("Echo", number))
    return sessions


async def test_sessions_take_turns_and_stay_with_their_server() -> None:
    with fleet(3) as servers:
        async with client_of(servers) as opened:
            sessions = await open_all(opened, 7)
            assert servers.created() == [3, 2, 2]
            assert [served.sessions for served in servers.served] == [3, 2, 2]
            await asyncio.gather(*(session.close() for session in sessions))
        for served in servers.served:
            named = {headers["x-session-id"] for path, headers in served.requests if path == "/create"}
            assert {headers.get("x-session-id") for _, headers in served.requests} - {None} == named
            assert served.sessions == 0


async def play(playing: Runtime, name: str, *actions: tuple[str, ...]) -> Outcome:
    request = RolloutRequest(task=task_of("Trouble", name=name), rollout_id=name)
    return await playing.play(request, model(*(actions or (("step",), ("finish",)))))


def runtime_of(opened: OpenRewardClient) -> Runtime:
    breaker = CircuitBreaker(max_error_rate=0.5, group_size=1)
    return Runtime(opened.config, renderer=RENDERER, client=opened, breaker=breaker)


async def test_killed_server_is_left_out_until_it_is_back(monkeypatch: pytest.MonkeyPatch) -> None:
    with fleet() as servers:
        async with client_of(servers) as opened, asyncio.timeout(50):
            playing = runtime_of(opened)
            sessions = await open_all(opened, 4)
            await asyncio.to_thread(servers.stop, 1)
            before = servers.created()
            outcomes = await asyncio.gather(*(play(playing, f"left out {number}") for number in range(12)))
            assert [outcome.trajectory.error for outcome in outcomes] == [""] * 12
            assert not any(outcome.replayed for outcome in outcomes)
            assert servers.created() == [before[0] + 12, before[1]]
            assert servers.served[0].sessions == 2  # of the first four: nobody touched them
            servers.served[1] = await asyncio.to_thread(servers.start, 1)
            assert (await play(playing, "not yet")).reward == 1.0
            assert servers.served[1].count("/create") == 0
            monkeypatch.setattr(client, "AWAY_SECONDS", 0.0)
            await asyncio.gather(*(play(playing, f"back {number}") for number in range(8)))
            assert servers.served[1].count("/create") == 4
            await asyncio.gather(*(session.close() for session in sessions))


async def test_rollouts_of_a_killed_server_are_played_again() -> None:
    """Those of the other are not touched."""
    with fleet() as servers:
        async with client_of(servers) as opened, asyncio.timeout(50):
            playing, killed = runtime_of(opened), asyncio.Event()
            ready = asyncio.Semaphore(0)

            class Slow(ScriptedEngine):
                """Plays one action, and the rest after the kill."""

                async def generate(self, *args, **options):
                    if len(self.requests) == 1:
                        ready.release()
                        await killed.wait()
                    return await super().generate(*args, **options)

            async with asyncio.TaskGroup() as tasks:
                batch = [
                    tasks.create_task(
                        playing.play(
                            RolloutRequest(task=task_of("Trouble", name=str(n)), rollout_id=str(n)),
                            Slow([calling(name) for name in ("step", "finish") * 2]),
                        )
                    )
                    for n in range(6)
                ]
                for _ in batch:
                    await ready.acquire()
                await asyncio.to_thread(servers.stop, 1)
                killed.set()
            outcomes = [task.result() for task in batch]
    assert [outcome.reward for outcome in outcomes] == [1.0] * 6
    assert {outcome.trajectory.stop_reason for outcome in outcomes} == {StopReason.FINISHED}
    assert sum(outcome.replayed for outcome in outcomes) == 3


async def test_listing_and_version_come_from_a_server_that_answers(tmp_path: Path) -> None:
    with fleet(3) as servers:
        await asyncio.to_thread(servers.stop, 0)
        async with client_of(servers) as opened:
            for _ in range(4):
                assert (await open_listing(opened, "gallery/Echo", "train")).size
        await asyncio.to_thread(servers.stop, 1)
        await record_versions(opened.config, tmp_path)
        assert "null, " not in (tmp_path / "environments.json").read_text()
        await asyncio.to_thread(servers.stop, 2)
        async with client_of(servers) as opened:
            with pytest.raises(SessionError, match="no answer"):
                await open_listing(opened, "gallery/Echo", "train")


async def test_each_server_is_asked_for_its_version(tmp_path: Path) -> None:
    with fleet(3) as servers:
        await record_versions(client_of(servers).config, tmp_path)  # of two environments
        assert [served.count("/version") for served in servers.served] == [2, 2, 2]


async def test_next_start_closes_sessions_of_every_server(tmp_path: Path) -> None:
    with fleet() as servers:
        listed = OpenSessions(tmp_path)
        async with client_of(servers, listed) as opened:
            await open_all(opened, 4)
            of_a_dead_process(tmp_path)
            async with client_of(servers, OpenSessions(tmp_path)):
                assert [served.sessions for served in servers.served] == [0, 0]
            assert not lists_in(tmp_path)


@given(st.lists(st.sets(st.integers(0, 3)), min_size=1, max_size=30))
def test_turns_are_fair_among_servers_that_answer(away: list[set[int]]) -> None:
    """However servers go and come back, the one that answers and has waited longest is chosen."""

    async def choose() -> None:
        urls = [f"http://127.0.0.1:{port}" for port in (1, 2, 3, 4)]
        async with OpenRewardClient(config_of("Echo", urls)) as opened:
            chosen = [(await reached(opened)).url for _ in urls]
            assert chosen == urls
            for gone in away:
                for url in urls:
                    servers[url].away_at = inf if urls.index(url) in gone else -inf
                here = [url for url in urls if urls.index(url) not in gone] or urls
                chosen.append((await reached(opened)).url)
                assert chosen[-1] == max(here, key=chosen[-2::-1].index)

    async def reached(opened: OpenRewardClient) -> HttpClient:
        http = (await opened.environment("gallery/Echo", served="echo")).endpoint.http
        servers[http.url] = http
        return http

    servers: dict[str, HttpClient] = {}
    asyncio.run(choose())
