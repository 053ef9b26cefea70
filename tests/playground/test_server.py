"""The environments behind their real server, played with the real OpenReward client over loopback."""

import asyncio
import re
import subprocess
import sys
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, contextmanager

import pytest
from orl_playground.game import tasks
from orl_playground.server import ENVIRONMENTS, ServerError, processes_for, serving

SECONDS = 60


@pytest.fixture
def base_url(guess_number: str) -> str:
    return guess_number


@asynccontextmanager
async def environment(base_url: str, variant: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator:
    monkeypatch.setenv("OPENREWARD_DISABLE_UPDATE_CHECK", "1")
    import openreward

    client = openreward.AsyncOpenReward(api_key="none")
    try:
        async with asyncio.timeout(SECONDS):
            yield client.environments.get("playground", variant=variant, base_url=base_url)
    finally:
        await client.environments.aclose()
        client.rollout.close()


def text(output) -> str:
    return "".join(block.text for block in output.blocks)


@pytest.mark.runs
async def test_server_process_serves_every_environment(monkeypatch):
    with serving(processes=2) as urls:
        assert len(set(urls)) == 2
        for url in urls:
            for variant in ENVIRONMENTS:
                async with environment(url, variant, monkeypatch) as env:
                    assert await env.num_tasks("test") >= 256
    for url in urls:
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))


async def test_tasks_are_listed_whole_by_index_and_by_range(base_url, monkeypatch):
    async with environment(base_url, "guessnumber", monkeypatch) as env:
        assert await env.list_splits() == ["train", "test"]
        every = await env.list_tasks("test")
        assert await env.num_tasks("test") == len(every) >= 256
        assert (await env.get_task("test", 7)).task_spec == every[7].task_spec
        ranged = await env.get_task_range("test", start=5, stop=8)
        assert [task.task_spec for task in ranged] == [task.task_spec for task in every[5:8]]


async def test_guess_number_is_won_by_halving_and_lost_from_the_ends(base_url, monkeypatch):
    async with environment(base_url, "guessnumber", monkeypatch) as env:
        assert await env.terminal_tool() is None
        secret = tasks("test")[0]
        async with env.session(split="test", index=0) as session:
            prompt = text((await session.get_messages())[0])
            low, high = map(int, re.findall(r"\d+", prompt)[:2])
            assert (low, high) == (secret.low, secret.high)
            while True:
                output = await session.call_tool("guess", {"number": (low + high) // 2})
                if output.finished:
                    break
                low, high = map(int, re.findall(r"\d+", text(output)))
            assert output.reward == 1.0
        async with env.session(split="test", index=0) as session:
            outputs = [await session.call_tool("guess", {"number": secret.high + 1}) for _ in range(4)]
            assert [output.finished for output in outputs] == [False, False, False, True]
            assert sum(output.reward for output in outputs) == 0.0


async def test_invalid_arguments_are_told_to_the_model(base_url, monkeypatch):
    from openreward.api.errors import ToolCallError

    async with (
        environment(base_url, "guessnumber", monkeypatch) as env,
        env.session(split="train", index=0) as session,
    ):
        with pytest.raises(ToolCallError):
            await session.call_tool("guess", {"number": "many"})
        assert not (await session.call_tool("guess", {"number": 0})).finished


@contextmanager
def started(*words, stdin=subprocess.PIPE):
    command = [sys.executable, "-m", "orl_playground.server", *words]
    with subprocess.Popen(command, stdin=stdin, stdout=subprocess.PIPE) as child:
        try:
            assert child.stdout is not None
            yield child, child.stdout
        finally:
            child.kill()


@pytest.mark.slow
def test_owned_server_ends_when_its_input_closes():
    with started("--owned") as (child, output):
        assert re.fullmatch(rb"listening on http://127\.0\.0\.1:\d+\n", output.readline())
        child.communicate(timeout=SECONDS)
        assert child.returncode == 0


@pytest.mark.slow
def test_server_without_standard_input_keeps_serving():
    """As with `&` in a script, nohup, and docker without -i."""
    with started(stdin=subprocess.DEVNULL) as (child, output):
        url = output.readline().decode().strip().removeprefix("listening on ")
        with urllib.request.urlopen(f"{url}/health", timeout=SECONDS) as answer:
            assert answer.status == 200
        child.terminate()
        assert child.wait(SECONDS) in (0, -15)


@pytest.mark.slow
def test_a_server_ends_with_its_parent_before_it_is_ready():
    """The imports take seconds."""
    with started("--owned") as (child, _):
        assert child.communicate(timeout=SECONDS)[0] == b""
        assert child.returncode == 0


def test_a_wait_for_a_server_can_be_ended():
    def check():
        raise InterruptedError

    with pytest.raises(InterruptedError), serving(check=check):
        pass


def test_a_server_that_cannot_start_shows_why(monkeypatch, tmp_path):
    (tmp_path / "uvicorn.py").write_text("raise ImportError('no such server')", encoding="utf-8")
    with monkeypatch.context() as patch:
        patch.setenv("PYTHONPATH", str(tmp_path))
        with pytest.raises(ServerError, match="no such server"), serving():
            pass
    with pytest.raises(ServerError, match="not ready in time"), serving(start_seconds=0.01):
        pass


@pytest.mark.parametrize(("cores", "processes"), [(None, 1), (1, 1), (7, 1), (8, 2), (16, 4), (128, 4)])
def test_processes_follow_the_cores(cores, processes):
    assert processes_for(cores) == processes


def test_importing_the_package_is_light():
    heavy = "{'openreward', 'torch', 'transformers', 'trl', 'uvicorn', 'asyncio'}"
    code = f"import sys, orl_playground, orl_playground.server; print({heavy} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True).stdout == "set()\n"
