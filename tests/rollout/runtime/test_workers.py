"""Rollouts in several processes: real ones, against the stand-in of SGLang and environments on loopback."""

from __future__ import annotations

import asyncio
import random
import re
import subprocess
import sys
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest
from msgspec import structs
from orl_core.config import RunConfig, decode_config
from orl_core.errors import ConfigError, OrlError, RenderError, RunAborted
from orl_core.task import Task
from orl_rollout.episodes.journal import Entry, read_journal
from orl_rollout.recognised_engine import RecognisedEngine
from orl_rollout.results.metrics import stats_of, training_metrics
from orl_rollout.results.outcome import Outcome
from orl_rollout.runtime.circuit_breaker import WINDOW
from orl_rollout.runtime.runtime import Runtime
from orl_rollout.runtime.workers import Workers, open_player, share_of
from orl_rollout.sglang.client import SglangEngine
from orl_rollout.training.play import Batch, play
from orl_rollout.vllm.client import VllmEngine

from tests.kit.serving import engine, free_port

if TYPE_CHECKING:  # a parent of processes imports this module
    from orl_testing.environments import Served

MODULE = "orl_rollout.runtime.workers"
SAME = re.compile(r"seconds|cache")  # of metrics that depend on the clock, or on who asked first
SCRIPT = """\
import asyncio, sys
from tests.rollout.runtime.test_workers import NEVER, opened, play, playing
async def main(url, engine, folder, checkpoint):
    async with opened(url, folder, checkpoint, 2) as player, playing(engine) as client:
        await play(NEVER, player, client, print)
asyncio.run(main(*sys.argv[1:]))
"""


def config_of(url: str, workers: int = 2, **rollout: Any) -> RunConfig:
    environment = {"base_url": url, "max_turns": 4}
    rollout = {"workers": workers, "context_tokens": 4096, "patience": 0.5, **rollout}
    return decode_config({"environments": {"gallery/Trouble": environment}, "rollout": rollout}, "test")


def policy(ids: Any, sampling: Any) -> list[int]:
    """Finish by chance, which the seed of the rollout decides; never at a temperature of 0."""
    from tests.kit.episodes import calling

    chance = random.Random(f"{sampling['sampling_seed']}/{len(ids)}")
    name = chance.choice(("step", "step", "finish")) if sampling["temperature"] else "step"
    return list(calling(name).token_ids)


def batch_of(rollouts: int, temperature: float = 1.0, **spec: Any) -> Batch:
    name = "gallery/Trouble"
    bare = Task(env_name=name, deployment_name=name, environment_name="trouble")
    tasks = [structs.replace(bare, task_spec={"name": f"task {number}", **spec}) for number in range(rollouts)]
    return Batch(tasks=tasks, samples=1, name="train/3", seed=11, sampling={"temperature": temperature}, step=3)


NEVER = batch_of(4, 0.0, at="tool", call=0, does="hang")


@pytest.fixture(scope="module")
def gallery() -> Generator[Served]:
    from orl_testing.environments import Trouble, serve

    with serve(Trouble) as served:
        yield served


@pytest.fixture(scope="module")
def sglang() -> Generator[str]:
    with engine(policy) as url:
        yield url


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> str:
    from tests.kit.tokenizers import build, template

    folder = tmp_path_factory.mktemp("model")
    build(template("qwen3")).save_pretrained(folder)
    return str(folder)


@asynccontextmanager
async def opened(
    url: str, folder: Path | str, checkpoint: str, workers: int, **rollout: Any
) -> AsyncGenerator[Runtime | Workers]:
    async with open_player(config_of(url, workers, **rollout), checkpoint, folder, 1) as player:
        yield player
    assert not processes()


def playing(url: str) -> SglangEngine:
    return SglangEngine(url, context_tokens=4096)


def processes() -> list[psutil.Process]:
    return [one for one in psutil.Process().children() if MODULE in one.cmdline()]


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - what it looks at is another process
            await asyncio.sleep(0.02)


def told(outcome: Outcome | Entry) -> tuple[Any, ...]:
    trajectory = outcome.trajectory
    turns = [(turn.observation, turn.action_ids, [one.content for one in turn.results]) for turn in trajectory.turns]
    return trajectory.job.rollout_id, trajectory.job.sampling, turns, trajectory.ending, outcome.reward, outcome.success


def trained(outcome: Outcome) -> list[Any]:
    return [(one.prompt, one.response, one.logprobs, one.loss_mask, one.reward) for one in outcome.datums]


async def test_two_processes_play_as_one(gallery: Served, sglang: str, checkpoint: str, tmp_path: Path) -> None:
    found: list[Any] = []
    for workers in (1, 2):
        folder = tmp_path / str(workers)
        async with opened(gallery.url, folder, checkpoint, workers) as player, playing(sglang) as client:
            outcomes = await play(batch_of(24), player, client, lambda outcome: outcome)
        entries = sorted(read_journal(folder), key=lambda entry: entry.key)
        assert len(list(folder.glob("journal-*"))) == workers
        assert {entry.step for entry in entries} == {3}
        metrics = training_metrics(map(stats_of, outcomes))
        same = {name: value for name, value in metrics.items() if not SAME.search(name)}
        found.append((list(map(told, outcomes)), list(map(told, entries)), list(map(trained, outcomes)), same))
    assert found[0] == found[1]
    assert len({one[3] for one in found[0][0]}) == 2  # chance decided
    assert not gallery.sessions


def test_shares_add_up_to_each_limit() -> None:
    environments = {"a/b": {"max_concurrency": 11}, "a/c": {}}
    tree = {"environments": environments, "rollout": {"workers": 4, "reward_concurrency": 6}}
    config = decode_config(tree, "test")
    shares = [share_of(config, place) for place in range(4)]
    assert sorted(one.environments["a/b"].max_concurrency or 0 for one in shares) == [2, 3, 3, 3]
    assert sorted(one.rollout.reward_concurrency or 0 for one in shares) == [1, 1, 2, 2]
    assert {one.environments["a/c"].max_concurrency for one in shares} == {None}


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ({"environments": {"a/b": {"max_concurrency": 2}}}, "`max_concurrency` of a/b 2"),
        ({"environments": {"a/b": {}}, "rollout": {"reward_concurrency": 1}}, "`reward_concurrency` 1"),
        ({"environments": {"a/b": {}}, "agent": "a:b"}, "only the built-in loop"),
    ],
)
def test_workers_without_a_share_are_refused(tree: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        decode_config({**tree, "rollout": {"workers": 3, **tree.get("rollout", {})}}, "test")
    decode_config({**tree, "rollout": {"workers": 1, **tree.get("rollout", {})}}, "test")


@pytest.mark.slow
async def test_open_rollouts_are_closed_on_return_and_with_player(
    gallery: Served, sglang: str, checkpoint: str, tmp_path: Path
) -> None:
    """An address where nobody answers is named in the error. A model in this process cannot travel."""
    from tests.kit.episodes import model

    nowhere = f"http://127.0.0.1:{free_port()}"
    async with playing(sglang) as client, asyncio.timeout(60):
        async with opened(gallery.url, tmp_path, checkpoint, 2) as player:
            with pytest.raises(TypeError, match="at an address"):
                await play(batch_of(1), player, model(("finish",)), lambda outcome: outcome)
            for kind in (VllmEngine, RecognisedEngine):
                async with kind(nowhere, context_tokens=4096) as absent:
                    (outcome,) = await play(batch_of(1), player, absent, lambda outcome: outcome)
                assert nowhere in outcome.trajectory.error
            for ends in (False, True):
                batch = asyncio.create_task(play(NEVER, player, client, lambda outcome: outcome))
                await until(lambda: gallery.sessions == len(NEVER))
                if not ends:
                    batch.cancel()
                    with pytest.raises(asyncio.CancelledError):
                        await batch
                    assert not gallery.sessions
                    assert len(await play(batch_of(2), player, client, lambda outcome: outcome)) == 2
        assert not gallery.sessions
        with pytest.raises(OrlError):
            await batch


@pytest.mark.slow
async def test_process_that_dies_ends_the_run(gallery: Served, sglang: str, checkpoint: str, tmp_path: Path) -> None:
    async with opened(gallery.url, tmp_path, checkpoint, 2) as player, playing(sglang) as client:
        await play(batch_of(8), player, client, lambda outcome: outcome)
        batch = asyncio.create_task(play(NEVER, player, client, lambda outcome: outcome))
        await until(lambda: gallery.sessions == len(NEVER))
        processes()[0].kill()
        with pytest.raises(OrlError, match="exit code -9"):
            await batch
        with pytest.raises(OrlError, match="exit code -9"):
            await play(batch_of(2), player, client, lambda outcome: outcome)
    assert len([entry for entry in read_journal(tmp_path) if not entry.lost]) == 8
    async with opened(gallery.url, tmp_path, checkpoint, 1):
        assert not gallery.sessions  # a start closes what a process left open


@pytest.mark.slow
async def test_breaker_counts_all_processes(sglang: str, checkpoint: str, tmp_path: Path) -> None:
    async with (
        opened(f"http://127.0.0.1:{free_port()}", tmp_path, checkpoint, 2) as player,
        playing(sglang) as client,
        asyncio.timeout(60),
    ):
        with pytest.raises(RunAborted, match=f"{WINDOW} of the last {WINDOW} rollouts"):
            await play(batch_of(WINDOW), player, client, lambda outcome: outcome)


@pytest.mark.slow
async def test_process_that_cannot_open_says_why(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{", encoding="utf-8")
    with pytest.raises(RenderError, match="loading the tokenizer"):
        async with opened("http://127.0.0.1:9", tmp_path, str(tmp_path), 2):
            raise AssertionError
    assert not processes()


@pytest.mark.slow
async def test_processes_close_all_when_the_parent_dies(
    gallery: Served, sglang: str, checkpoint: str, tmp_path: Path
) -> None:
    words = [sys.executable, "-c", SCRIPT, gallery.url, sglang, str(tmp_path), checkpoint]
    with subprocess.Popen(words, stderr=subprocess.DEVNULL) as parent:  # noqa: ASYNC220
        try:
            await until(lambda: gallery.sessions == len(NEVER))
            children = psutil.Process(parent.pid).children()
            parent.kill()
            await until(lambda: not gallery.sessions)
            gone, left = await asyncio.to_thread(psutil.wait_procs, children, 40)
        finally:
            parent.kill()
    assert len(gone) == 2
    assert not left
    assert not [*tmp_path.glob("sessions-*")]  # noqa: ASYNC240
