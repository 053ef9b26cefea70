"""Whole runs of the command line with SGLang or vLLM: the Course in one process, torch in its child, their endings."""

from __future__ import annotations

import asyncio
import json
import os
import py_compile
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from contextlib import suppress
from pathlib import Path
from threading import Event, Timer

import psutil
import pytest
import torch
from orl_core.errors import ConfigError, EngineError
from orl_local.engine.engine_plan import STARTED
from orl_local.engine.engine_process import LOG
from orl_local.run import train
from orl_rollout.episodes.journal import journal_files, read_journal
from orl_rollout.loop.engine import Engine
from orl_rollout.results.outcome import Outcome
from orl_rollout.run_folder import metrics_log
from orl_rollout.run_folder.checkpoint import checkpoint_in
from orl_rollout.runtime.runtime import RolloutRequest

from tests.kit.nvml import Gpu, driver
from tests.local.checkpoints import weights_of
from tests.local.fakes import Player, by_row, make_run, summary
from tests.local.stand_in import Weights, served
from tests.local.test_engine_process import gone

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
SECONDS = 120.0  # for a run to end
PROGRAM = """
import sys
from orl_launcher.main import main
from tests.kit.nvml import Gpu, driver
with driver(Gpu("GPU-a")):
    code = main()
print("torch" in sys.modules)
sys.exit(code)
"""
CONFIG = """
environments:
  playground/GuessNumber: {{splits: [train], eval_splits: [], max_turns: 2, num_samples: 4, base_url: "{environment}"}}
rollout: {{turn_tokens: 4, context_tokens: 1024}}
reward: mine:score
trainer:
  {{backend: local, model: "{model}", num_rollout: {steps}, rollout_batch_size: 2, n_samples: 2, lr: 1.0e-3,
   max_logprob_difference: {difference}, save_interval: {interval}, local: {{engine: "{engine}", save_total_limit: 9}}}}
"""
REWARD = "def score(trajectory): return float(trajectory.job.rollout_id[-1] in '03')"


class Started:
    """A run in `folder` that has started. `words` are trainer settings."""

    def __init__(self, folder: Path, environment: str, model: Path, engine: str, **trainer: float) -> None:
        folder.mkdir()
        settings = {"steps": 2, "interval": 1, "difference": 0.05, **trainer}
        text = CONFIG.format(environment=environment, model=model, engine=engine, **settings)
        (folder / "config.yaml").write_text(text, "utf-8")
        (folder / "mine.py").write_text(REWARD, "utf-8")
        self.folder = folder / "runs" / "run"
        words = ["train", "local", "--config", "config.yaml", "--name", "run"]
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, *words],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(folder.parent)])},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def child(self, words: str) -> psutil.Process:
        """Return the descendant whose command has `words`."""
        children = psutil.Process(self.process.pid).children(recursive=True)
        (found,) = [one for one in children if words in one.cmdline()]
        return found

    def end(self) -> tuple[int, str]:
        said, _ = self.process.communicate(timeout=SECONDS)
        return self.process.returncode, said

    def summary(self) -> dict[str, object]:
        return json.loads((self.folder / "summary.json").read_bytes())

    def steps(self) -> list[int]:
        return [row.step for row in metrics_log.read(self.folder / "metrics.jsonl")]

    def episodes(self) -> set[str]:
        entries = [entry for file in journal_files(self.folder) for entry in read_journal(file)]
        return {entry.trajectory.job.rollout_id for entry in entries}


Start = Callable[..., Started]


@pytest.fixture
def start(guess_number: str, checkpoint: Path, tmp_path: Path) -> Generator[Start]:
    runs: list[Started] = []

    def started(engine: str, **trainer: float) -> Started:
        runs.append(Started(tmp_path / f"at{len(runs)}", guess_number, checkpoint, engine, **trainer))
        return runs[-1]

    yield started
    for run in runs:
        run.process.kill()
        run.process.communicate()


@pytest.fixture(scope="module")
def whole(guess_number: str, checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Weights]]:
    """A run that nothing interrupts, and the weights that its server had."""
    with served() as (server, _):
        run = Started(tmp_path_factory.mktemp("whole") / "run", guess_number, checkpoint, server.url)
        code, said = run.end()
    assert (code, said.splitlines()[-1]) == (0, "False"), said  # it imported no torch
    return run.folder, server.states


def test_run_sends_the_weights_of_each_step(whole: tuple[Path, list[Weights]], checkpoint: Path):
    run, states = whole
    folders = [checkpoint, run / "trainer" / "checkpoint-1", run / "checkpoint"]
    assert [note.step for folder in folders[1:] if (note := checkpoint_in(folder))] == [1, 2]
    assert len(states) == 3
    for state, folder in zip(states, folders, strict=True):
        weights = weights_of(folder)
        assert all(torch.equal(weight, weights[name].to(torch.bfloat16)) for name, weight in state.items())
    assert any(not torch.equal(weight, states[1][name]) for name, weight in states[2].items())
    rows = metrics_log.read(run / "metrics.jsonl")
    assert [row.step for row in rows] == [1, 2]
    assert all(row.metrics["weights_changed"] > 0 for row in rows)


@pytest.mark.parametrize(
    "stage", ["update", pytest.param("rollouts", marks=pytest.mark.runs), pytest.param("sync", marks=pytest.mark.runs)]
)
def test_interrupted_run_has_the_checkpoint_of_its_last_whole_step(
    start: Start, whole: tuple[Path, list[Weights]], stage: str
):
    """Hold that the steps which trained are in it, are not played again, and no others."""
    signalled, step = Event(), 1 + (stage == "sync")
    with served() as (server, _):
        run = start(server.url, interval=9)

        def interrupt() -> None:
            if not signalled.is_set():
                run.process.send_signal(signal.SIGINT)
                signalled.set()

        def asked() -> None:
            if len(server.weights) < 2 or signalled.is_set():
                return
            if stage == "rollouts":
                server.pause()
                interrupt()
            elif stage == "update" and len(server.requests) == 16:  # the last of step 2: the child is asked next
                run.child("orl_local.rank").suspend()
                Timer(1.0, interrupt).start()

        def loading(weights: Weights) -> Weights:
            if stage == "sync" and len(server.weights) == 3:
                interrupt()
                time.sleep(1)
            return weights

        server.asked, server.tamper = asked, loading  # pyright: ignore[reportAttributeAccessIssue]
        assert signalled.wait(SECONDS)
        if stage == "update":
            time.sleep(1)
            run.child("orl_local.rank").resume()
        code, said = run.end()
    assert code == 130, said
    assert run.summary()["interrupted"] is True
    assert run.steps() == [*range(1, step + 1)]
    note = checkpoint_in(run.folder / "checkpoint")
    assert note is not None
    assert note.step == step
    theirs = weights_of(whole[0] / ("trainer/checkpoint-1" if step == 1 else "checkpoint"))
    ours = weights_of(run.folder / "checkpoint")
    assert all(torch.equal(weight, theirs[name]) for name, weight in ours.items())


def test_death_of_the_child_ends_the_run_with_all_that_there_is(start: Start):
    killed: list[psutil.Process] = []
    with served() as (server, _):
        run = start(server.url)

        def kill() -> None:
            if len(server.weights) == 2 and not killed:
                killed.append(run.child("orl_local.rank"))
                killed[0].kill()

        server.asked = kill  # pyright: ignore[reportAttributeAccessIssue]
        code, said = run.end()
    assert code == 1
    assert "training process died" in str(run.summary()["error"]), said
    assert "never retrieved" not in said
    assert run.steps() == [1]
    assert run.episodes() == {f"train/{step}/{row}" for step in (1, 2) for row in range(4)}
    note = checkpoint_in(run.folder / "checkpoint")
    assert note is not None
    assert note.step == 1


@pytest.fixture
def sglang(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Install the stand-in as `sglang`."""
    package = tmp_path / "sglang"
    package.mkdir()
    (package / "__init__.py").touch()
    program = package / "launch_server.py"
    program.write_text("from orl_testing.sglang.__main__ import main\nmain()\n", "utf-8")
    py_compile.compile(str(program))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))


def servers() -> list[psutil.Process]:
    """Return the SGLang servers of this process."""
    return [one for one in psutil.Process().children() if "sglang.launch_server" in one.cmdline()]


@pytest.fixture
def vllm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Install the stand-in as `vllm`."""
    package = tmp_path / "vllm" / "entrypoints" / "cli"
    package.mkdir(parents=True)
    for folder in (package, *package.parents[:2]):
        (folder / "__init__.py").touch()
    (package / "main.py").write_text(
        "import sys\nfrom orl_testing.sglang.__main__ import main\nmain(sys.argv[2:])\n", "utf-8"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))


@pytest.mark.usefixtures("sglang", "vllm")
@pytest.mark.parametrize(("engine", "module"), [(kind, STARTED[kind].PROGRAM[3]) for kind in STARTED])
def test_child_and_engine_end_with_a_run_killed_by_force(start: Start, engine: str, module: str):
    run = start(engine, steps=1000, interval=1000, difference=1e9)
    ends = time.monotonic() + SECONDS
    while not (run.folder / "metrics.jsonl").is_file():
        assert run.process.poll() is None, run.end()
        assert time.monotonic() < ends
        time.sleep(0.1)
    children = psutil.Process(run.process.pid).children(recursive=True)
    words = {word for child in children for word in child.cmdline()}
    assert {"orl_local.rank", module} <= words
    run.process.kill()
    assert all(gone(child.pid) for child in children)


class Murder(Player):
    """Its first rollout kills each server that serves; no rollout ends."""

    async def play(self, request: RolloutRequest, engine: Engine) -> Outcome:
        while True:
            if request.rollout_id.endswith("/0"):
                with suppress(EngineError, psutil.Error, ProcessLookupError):
                    await engine.generate((1, 2), {"max_new_tokens": 1}, key="k")
                    for server in servers():
                        os.killpg(server.pid, signal.SIGKILL)
            await asyncio.sleep(0.05)


@pytest.mark.runs
@pytest.mark.usefixtures("sglang")
def test_second_death_of_sglang_ends_rollouts_at_once(checkpoint: Path, tmp_path: Path):
    run = make_run(tmp_path / "run", checkpoint, engine="sglang")
    with driver(Gpu("GPU-a")), pytest.raises(EngineError, match="SGLang died"):
        train(run, Murder(run.config, by_row).open)
    assert "SGLang died" in summary(run)["error"]  # twice, or while it started
    assert not servers()


@pytest.mark.runs
@pytest.mark.usefixtures("sglang")
def test_sglang_ends_if_the_model_cannot_be_loaded(checkpoint: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture):
    """It starts while the model is loaded, and is not waited for."""
    torn = tmp_path / "torn"
    shutil.copytree(checkpoint, torn, ignore=shutil.ignore_patterns("*.safetensors"))
    (torn / "pytorch_model.bin").write_bytes(b"torn")
    run = make_run(tmp_path / "run", torn, engine="sglang")
    with driver(Gpu("GPU-a")), pytest.raises(ConfigError, match="loading the model"):
        train(run, Player(run.config, by_row).open)
    assert (run.folder / LOG).is_file()
    assert not servers()
    assert "never retrieved" not in caplog.text
