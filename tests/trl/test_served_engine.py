"""An SGLang as the engine of training: weights before each batch, memory after it, one restart, an end.

The stand-in serves on a thread with the weights that it gets; as a process, where the process matters.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import psutil
import pytest
from orl_core.config import RunConfig
from orl_core.errors import ConfigError
from orl_rollout.loop.engine import Engine
from orl_rollout.results.outcome import Outcome
from orl_rollout.run_folder.contract import Run
from orl_rollout.runtime.runtime import RolloutRequest
from orl_testing import SglangServer
from orl_trl.engine.open_engine import EngineFor, started
from orl_trl.engine.served_engine import RESTARTS, SYNC_SECONDS, ServedEngine, Server
from orl_trl.engine.sglang_control import SglangControl
from orl_trl.engine.sglang_process import LOG, Launch
from orl_trl.engine.weights import WeightSender
from orl_trl.run_plan.settings import grpo_config
from orl_trl.run_plan.training_plan import plan_of
from orl_trl.training.rollouts import Rollouts
from orl_trl.training.training_run import OpenEngine, train
from transformers import PreTrainedModel, Qwen3ForCausalLM

from tests.trl.fakes import Player, by_row, make_run, rows, summary
from tests.trl.stand_in import served
from tests.trl.test_sglang_process import gone, pid_of

STAND_IN = Launch(
    model="m", context_tokens=4096, program=(sys.executable, "-m", "orl_testing.sglang"), memory_saver=True
)


def engine_over(model: PreTrainedModel, server: SglangServer, control: SglangControl, folder: Path) -> ServedEngine:
    sender = WeightSender(control, folder / "weights")
    return ServedEngine(model, Server(url=server.url, context_tokens=4096, releases=True), sender)


def opening(server: SglangServer, control: SglangControl, folder: Path) -> OpenEngine:
    return lambda *_: nullcontext(lambda model: engine_over(model, server, control, folder))


def test_training_goes_on_with_the_weights_of_each_step(checkpoint: Path, tmp_path: Path):
    run = make_run(tmp_path / "run", checkpoint, held_out=2)
    player = Player(run.config, by_row)
    with served() as (server, control):
        train(run, player.open, opening(server, control, tmp_path))
    assert server.weight_version == "2"
    assert len(server.weights) == 5  # before each batch: three of the held-out tasks, two of training
    assert server.released == {"weights", "kv_cache", "cuda_graph"}
    assert summary(run)["steps"] == 2
    for row in rows(run):
        assert row[SYNC_SECONDS] > 0
    steps = [row for row in rows(run) if row["kind"] == "train"]
    assert all(row["seconds"] >= row[SYNC_SECONDS] + row["rollout_seconds"] for row in steps)
    assert all("sampling/sampling_logp_difference/mean" in row for row in steps)
    for request in server.requests:
        assert "sampling_seed" in request.body["sampling_params"]


def test_generations_name_the_step_of_their_weights(checkpoint: Path, tmp_path: Path, model: Qwen3ForCausalLM):
    run = make_run(tmp_path / "run", checkpoint, held_out=1)
    player = Player(run.config, lambda _: 1.0)
    with served() as (server, control):
        engine = engine_over(model, server, control, tmp_path)
        plan = plan_of(run, grpo_config(run, parameters=1))
        with Rollouts(plan, engine, lambda: player.open(run, "")) as rollouts:
            rollouts(list(plan.tasks), None)
            rollouts(list(plan.tasks), None)
            versions = {
                generation.weight_version
                for outcome in rollouts.outcomes
                for turn in outcome.trajectory.turns
                for generation in turn.generations
            }
            assert versions == {"1"}
            (held_out,) = rollouts.evaluate()
    assert held_out.trajectory.turns[0].generations[0].weight_version == "2"


def test_weights_that_the_engine_has_are_not_sent_again(model: Qwen3ForCausalLM, tmp_path: Path):
    with served() as (server, control):
        engine = ServedEngine(model, Server(url=server.url, context_tokens=4096), WeightSender(control, tmp_path))
        for version, sent in (("0", 1), ("0", 1), ("1", 2)):
            with engine.batch(version):
                assert len(server.weights) == sent
        assert not server.released


def test_an_address_that_nobody_serves_is_refused(checkpoint: Path, tmp_path: Path):
    run = make_run(tmp_path / "run", checkpoint, engine="http://127.0.0.1:9")
    with pytest.raises(ConfigError, match=r"127\.0\.0\.1:9"):
        train(run, Player(run.config, by_row).open)


def test_training_with_an_sglang_at_an_address(checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    with served() as (server, _):
        run = make_run(tmp_path / "run", checkpoint, engine=server.url, num_rollout=1)
        train(run, Player(run.config, by_row).open)
        assert not server.released
        assert f"engine: {server.url}" in capsys.readouterr().err
    assert [row["step"] for row in rows(run)] == [1]


def pid_of_child(engine: ServedEngine) -> int:
    assert engine._process is not None
    return pid_of(engine._process)


@pytest.mark.slow
def test_an_engine_killed_in_mid_rollout_is_restarted(checkpoint: Path, tmp_path: Path):
    run = make_run(tmp_path / "run", checkpoint, num_rollout=2, max_logprob_difference=1e9)
    engines: list[ServedEngine] = []
    killed: list[int] = []

    @contextmanager
    def open_engine(run: Run, *_: object) -> Generator[Callable[[PreTrainedModel], ServedEngine]]:
        with started(run, STAND_IN) as engine_for:

            def noted(model: PreTrainedModel) -> ServedEngine:
                engines.append(engine_for(model))
                return engines[0]

            yield noted

    def kill(key: str) -> None:
        if key == "train/2/3":
            killed.append(pid_of_child(engines[0]))
            os.killpg(killed[0], signal.SIGKILL)

    train(run, Before(run.config, kill).open, open_engine)
    assert gone(killed[0])
    first, second = rows(run)
    assert RESTARTS not in first
    assert second[RESTARTS] == 1
    assert second["toy/Env/rollouts"] == second["toy/Env/judged"] == 8
    assert summary(run)["steps"] == 2
    assert (run.folder / LOG).is_file()
    assert gone(pid_of_child(engines[0]))


def test_engine_ends_if_the_model_cannot_be_loaded(checkpoint: Path, tmp_path: Path):
    """It starts before the model is loaded."""
    torn = tmp_path / "torn"
    shutil.copytree(checkpoint, torn)
    (torn / "model.safetensors").write_bytes(b"torn")
    run, before = make_run(tmp_path / "run", torn), {*psutil.Process().children(recursive=True)}
    begun: list[psutil.Process] = []

    @contextmanager
    def open_engine(run: Run, *_: object) -> Generator[EngineFor]:
        with started(run, STAND_IN) as engine_for:
            begun.extend({*psutil.Process().children(recursive=True)} - before)
            yield engine_for

    with pytest.raises(ConfigError, match="torn"):
        train(run, Player(run.config, by_row).open, open_engine)
    assert begun
    assert all(gone(process.pid) for process in begun)


class Before(Player):
    """Calls `work` with each rollout's key before its first turn."""

    def __init__(self, config: RunConfig, work: Callable[[str], None]) -> None:
        super().__init__(config, lambda _: 1.0)
        self._work = work

    async def play(self, request: RolloutRequest, engine: Engine) -> Outcome:
        self._work(request.rollout_id)
        return await super().play(request, engine)
