"""The list of open sessions: after SIGKILL the next start of the run closes them, and those of a live process stay."""

from __future__ import annotations

import asyncio
import os
import stat
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest
from orl_rollout.openreward import OpenRewardClient
from orl_rollout.openreward.open_sessions import FILES, OpenSessions, start_of
from orl_testing import environments as envs

from tests.kit.episodes import config_of, task_of
from tests.kit.serving import free_port

SESSIONS = 3
OPENS = """
import asyncio, sys
from orl_core.config import decode_config
from orl_core.task import Task
from orl_rollout.openreward import OpenRewardClient
from orl_rollout.openreward.open_sessions import OpenSessions

async def main(url, folder, sessions):
    config = decode_config({"environments": {"gallery/Echo": {"base_url": url}}}, "test")
    async with OpenRewardClient(config, OpenSessions(folder)) as client:
        for number in range(int(sessions) + 1):
            task = Task(env_name="gallery/Echo", deployment_name="gallery/Echo", task_spec={"number": number})
            session = client.session(task)
            await session.open(task)
            if not number:
                await session.close()
        print("open", flush=True)
        await asyncio.Event().wait()

asyncio.run(main(*sys.argv[1:]))
"""


@contextmanager
def opening(url: str, folder: Path) -> Generator[subprocess.Popen[str]]:
    """A process that closes one session and keeps SESSIONS open, until it is killed."""
    command = [sys.executable, "-c", OPENS, url, str(folder), str(SESSIONS)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "open\n"
            yield process
        finally:
            process.kill()


def lists_in(folder: Path) -> list[Path]:
    return sorted(folder.glob(FILES))


def of_a_dead_process(folder: Path) -> Path:
    """Give this process's list the name of one that has ended."""
    (own,) = lists_in(folder)
    return own.rename(own.with_name(own.name.replace(start_of(os.getpid()), "1")))


async def start(url: str, folder: Path, name: str = "Echo") -> None:
    """The next start of the run."""
    async with OpenRewardClient(config_of(name, url), OpenSessions(folder)):
        pass


@pytest.mark.slow
async def test_next_start_closes_what_a_killed_process_left(tmp_path: Path) -> None:
    with envs.serve(envs.Echo) as served:
        with opening(served.url, tmp_path) as process:
            assert served.sessions == SESSIONS
            (path,) = lists_in(tmp_path)
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
            assert str(process.pid) in path.name
            await start(served.url, tmp_path)
            assert served.sessions == SESSIONS  # of a run that lives
        assert served.sessions == SESSIONS
        await start(served.url, tmp_path)
        assert served.sessions == 0
    assert not lists_in(tmp_path)


async def test_list_is_kept_while_the_server_is_away(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with envs.serve(envs.Echo) as served:
        async with OpenRewardClient(config_of("Echo", served.url), OpenSessions(tmp_path)) as client:
            session = client.session(task_of("Echo"))
            await session.open(task_of("Echo"))
            path = of_a_dead_process(tmp_path)
            await start(f"http://127.0.0.1:{free_port()}", tmp_path)
            assert lists_in(tmp_path) == [path]
            assert str(path) in caplog.text
            await start(served.url, tmp_path, "Other")  # of an environment that is not configured: nobody is asked
            assert (served.sessions, lists_in(tmp_path)) == (1, [])
            await session.close()


async def test_list_of_a_process_is_gone_with_its_sessions(tmp_path: Path) -> None:
    listed = OpenSessions(tmp_path)
    with envs.serve(envs.Echo) as served:
        async with OpenRewardClient(config_of("Echo", served.url), listed) as client:
            sessions = [client.session(task_of("Echo", number)) for number in range(SESSIONS)]
            for number, session in enumerate(sessions):
                await session.open(task_of("Echo", number))
            (path,) = lists_in(tmp_path)
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
            assert len(path.read_bytes().splitlines()) == SESSIONS
            for session in sessions:
                await session.close()
            assert path.read_bytes() == b""
    listed.close()
    assert not path.exists()


def test_resumed_run_closes_what_its_first_part_left(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    OpenSessions(first).opened("a/b", "s")
    path = of_a_dead_process(first)
    assert OpenSessions(second).left() == []
    for checkpoint in ("", "checkpoint", "checkpoint/iter_0000001"):
        assert OpenSessions(second, str(first / checkpoint)).left() == [(path, {"s": "a/b"})]


async def test_list_that_cannot_be_written_loses_no_session(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    listed = OpenSessions(tmp_path / "gone")
    with envs.serve(envs.Echo) as served:
        async with OpenRewardClient(config_of("Echo", served.url), listed) as client:
            session = client.session(task_of("Echo"))
            await session.open(task_of("Echo"))
            await session.close()
    assert "cannot be written" in caplog.text


def test_torn_and_foreign_lists_close_nothing(tmp_path: Path) -> None:
    listed = OpenSessions(tmp_path)
    listed.opened("a/b", "mine")
    dead = of_a_dead_process(tmp_path)
    (tmp_path / "sessions-another-host-1-2.jsonl").write_text('{"name": "s", "environment": "a/b"}\n')
    (tmp_path / "sessions-odd.jsonl").write_text("odd")
    dead.write_text(
        '{"name": "s", "environment": "a/b"}\n{"name": "closed", "environment": "a/b"}\n{"name": "closed"}\n{"na'
    )
    assert listed.left() == [(dead, {"s": "a/b"})]


async def test_zombie_is_dead() -> None:
    process = await asyncio.create_subprocess_exec("true")
    await process.wait()
    assert start_of(process.pid) == ""
    assert start_of(os.getpid())
