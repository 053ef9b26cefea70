"""An SGLang or a vLLM as the engine of training: weights after each step, memory while it trains, restarts, an end.

The stand-in serves on a thread with the weights that it gets; as a process, where the process matters.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from orl_core.config import RunConfig
from orl_core.errors import ConfigError, EngineError
from orl_local.engine import engine_process, sglang_control
from orl_local.engine.control import Control, Launch
from orl_local.engine.engine_process import LOG
from orl_local.engine.served_engine import RESTARTS, ServedEngine, Server, started
from orl_local.engine.sglang_control import SglangControl
from orl_local.engine.weight_check import METRIC
from orl_local.run import train
from orl_rollout.loop.engine import Engine
from orl_rollout.results.outcome import Outcome
from orl_rollout.runtime.runtime import RolloutRequest
from orl_rollout.training.rows import Row
from orl_testing import SglangServer

from tests.local.fakes import End, Player, by_row, make_run, rows, summary
from tests.local.stand_in import CONTROLS, Near, served
from tests.local.test_engine_process import gone

PROGRAM = (sys.executable, "-m", "orl_testing.sglang")
AHEAD = {"asynchronous": True}
ASKED: dict[str, Any] = {"max_new_tokens": 3, "temperature": 1.0, "stop_token_ids": []}


@pytest.fixture(params=CONTROLS, ids=lambda kind: kind.NAME)
def kind(request: pytest.FixtureRequest) -> type[Control]:
    return request.param


def engine_over(near: Near, server: SglangServer, folder: Path, kind: type[Control] = SglangControl) -> ServedEngine:
    mine = Server(control=kind, url=server.url, context_tokens=4096, folder=folder / "weights", releases=True, own=True)
    return ServedEngine(near, mine)


class Watched(Player):
    """Calls `work` with each rollout's key before its first turn. `versions` are those of the weights of each batch."""

    def __init__(
        self, config: RunConfig, work: Callable[[str], None] = lambda _: None, script: Callable[[str], End] = by_row
    ) -> None:
        super().__init__(config, script)
        self._work = work
        self.versions: set[tuple[str, str]] = set()

    async def play(self, request: RolloutRequest, engine: Engine) -> Outcome:
        self._work(request.rollout_id)
        outcome = await super().play(request, engine)
        made = [one for turn in outcome.trajectory.turns for one in turn.generations]
        self.versions |= {(request.rollout_id.rpartition("/")[0], str(one.weight_version)) for one in made}
        return outcome


async def test_training_goes_on_with_the_weights_of_each_step(checkpoint: Path, tmp_path: Path, kind: type[Control]):
    run = make_run(tmp_path / "run", checkpoint, held_out=2)
    player = Watched(run.config)
    with served(kind=kind) as (server, _):
        near = Near(run)
        await near.train(run, engine_over(near, server, tmp_path, kind), player)
    assert player.versions == {
        ("eval/0", "0"), ("train/1", "0"), ("eval/1", "1"), ("train/2", "1"), ("eval/2", "2")
    }  # fmt: skip
    assert len(server.weights) == 3
    assert not server.released
    for row in (row for row in rows(run) if row["kind"] == "train"):
        assert row[METRIC] > 0
        assert row["step_seconds"] >= row["weight_sync_seconds"] + row["rollout_seconds"] > row["rollout_seconds"]
        assert 0 < row["logprob_difference"] < 0.05  # of bf16
    for request in server.requests:
        assert {"seed", "sampling_seed"} & request.body["sampling_params"].keys()


async def test_rollouts_ahead_have_the_weights_before_the_update(checkpoint: Path, tmp_path: Path):
    run = make_run(tmp_path / "run", checkpoint, held_out=2, num_rollout=3, engine="http://127.0.0.1:9", **AHEAD)
    player = Watched(run.config)
    with served() as (server, _):
        near = Near(run)
        await near.train(run, engine_over(near, server, tmp_path), player)
        assert not server.released
    assert player.versions == {
        ("eval/0", "0"), ("train/1", "0"), ("train/2", "0"), ("eval/1", "1"), ("train/3", "1"), ("eval/2", "2"),
        ("eval/3", "3"),
    }  # fmt: skip
    steps = [row for row in rows(run) if row["kind"] == "train"]
    assert [row["staleness"] for row in steps] == [0.0, 1.0, 1.0]


@pytest.mark.slow
async def test_engine_killed_during_an_update_gets_the_same_weights(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    trainer: dict[str, Any] = {"max_logprob_difference": 1e9, "engine": "http://127.0.0.1:9", **AHEAD}
    run = make_run(tmp_path / "run", checkpoint, **trainer)
    written: list[dict[str, int]] = []
    async with mortal(tmp_path, checkpoint, **trainer) as (server, near):
        write, update = near.rank.write, near.rank.update

        def note(folder: Path) -> None:
            write(folder)
            written.append(near.rank.fingerprints())

        def killing(batch: list[Row], step: int) -> dict[str, float]:
            if step == 1:
                server.kill()
                latest = time.monotonic() + 30
                while len(written) < 2 and time.monotonic() < latest:  # otherwise the update may end first
                    time.sleep(0.01)
            return update(batch, step)

        monkeypatch.setattr(near.rank, "write", note)
        monkeypatch.setattr(near.rank, "update", killing)
        player = Watched(run.config, script=lambda key: float(key[-1] in "04"))
        await near.train(run, server.engine, player)
    assert player.versions == {("train/1", "0"), ("train/2", "0")}
    assert written[0] == written[1] != written[2]  # the first sync, the restart, the second sync
    assert summary(run)["steps"] == 2


async def test_memory_is_the_trainers_between_batches(checkpoint: Path, tmp_path: Path, kind: type[Control]):
    with served(kind=kind) as (server, _):
        async with engine_over(Near(make_run(tmp_path / "run", checkpoint)), server, tmp_path, kind) as engine:
            await engine.publish("0")
            await engine.client().generate((1, 2), ASKED, key="k")
            for _ in range(2):  # a step without rows, too
                await engine.release()
                assert {"weights", "kv_cache"} <= server.released
            assert METRIC in await engine.publish("1")
            assert (server.released, server.weight_version, len(server.weights)) == (set(), "1", 2)


async def test_release_that_the_server_refuses_ends_the_run(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(sglang_control, "IDLE_SECONDS", 0.0)
    with served() as (server, _):
        async with engine_over(Near(make_run(tmp_path / "run", checkpoint)), server, tmp_path) as engine:
            await engine.publish("0")
            monkeypatch.setattr(server, "flush_cache", lambda: False)
            with pytest.raises(EngineError, match="flush_cache"):
                await engine.release()


def test_an_address_that_nobody_serves_is_refused(checkpoint: Path, tmp_path: Path):
    run = make_run(tmp_path / "run", checkpoint, engine="http://127.0.0.1:9")
    with pytest.raises(ConfigError, match=r"127\.0\.0\.1:9"):
        train(run, Player(run.config, by_row).open)


class Mortal:
    """The engine of a server of its own, which can be killed. `pids` are those that its process had."""

    def __init__(self, engine: ServedEngine, known: set[psutil.Process]) -> None:
        self.engine, self._known = engine, known

    def kill(self) -> int:
        (pid,) = [
            one.pid for one in {*psutil.Process().children()} - self._known if "orl_testing.sglang" in one.cmdline()
        ]
        os.killpg(pid, signal.SIGKILL)
        return pid


@asynccontextmanager
async def mortal(
    folder: Path, checkpoint: Path, kind: type[Control] = SglangControl, **trainer: Any
) -> AsyncGenerator[tuple[Mortal, Near]]:
    run = make_run(folder / "run", checkpoint, **trainer)
    near, known = Near(run), {*psutil.Process().children()}
    launch = Launch(control=kind, model="m", context_tokens=4096, program=PROGRAM)
    with started(run, launch, folder, near) as engine:
        yield Mortal(engine, known), near


@pytest.mark.slow
async def test_an_engine_killed_in_mid_rollout_is_restarted(checkpoint: Path, tmp_path: Path, kind: type[Control]):
    run = make_run(tmp_path / "run", checkpoint, max_logprob_difference=1e9)
    killed: list[int] = []
    async with mortal(tmp_path, checkpoint, kind, max_logprob_difference=1e9) as (server, near):

        def kill(key: str) -> None:
            if key == "train/2/3":
                killed.append(server.kill())

        player = Watched(run.config, kill, lambda _: 1.0)
        await near.train(run, server.engine, player)
    assert {version for _, version in player.versions} <= {"0", "1"}
    assert gone(killed[0])
    first, second = rows(run)
    assert RESTARTS not in first
    assert second[RESTARTS] == 1
    assert second["toy/Env/rollouts"] == second["toy/Env/judged"] == 8
    assert summary(run)["steps"] == 2
    assert (run.folder / LOG).is_file()


@pytest.mark.slow
async def test_death_between_batches_costs_a_restart_and_a_second_one_the_run(
    checkpoint: Path, tmp_path: Path, kind: type[Control]
):
    async with mortal(tmp_path, checkpoint, kind) as (server, _), server.engine as engine:
        await engine.publish("0")
        await engine.release()
        server.kill()
        assert await engine.publish("1") == {RESTARTS: 1.0}
        await engine.client().generate((1, 2), ASKED, key="k")
        server.kill()
        with pytest.raises(EngineError, match="twice"):
            await asyncio.wait_for(engine.gone, 30)
        with pytest.raises(EngineError, match="twice"):
            await engine.publish("2")


@pytest.mark.slow
async def test_death_while_weights_are_checked_is_a_second_one(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    async with mortal(tmp_path, checkpoint) as (server, near), server.engine as engine:
        await engine.publish("0")
        server.kill()
        monkeypatch.setattr(near.rank, "fingerprints", lambda: {"w": server.kill()})
        with pytest.raises(EngineError, match="twice"):
            await asyncio.wait_for(engine.gone, 30)


@pytest.mark.slow
async def test_server_that_lives_is_not_started_again(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(engine_process, "DEATH_SECONDS", 0.2)
    async with mortal(tmp_path, checkpoint) as (server, near), server.engine as engine:
        monkeypatch.setattr(near.rank, "write", lambda _: refuse())
        with pytest.raises(EngineError, match="no"):
            await engine.publish("0")


def refuse() -> None:
    raise EngineError("no")
