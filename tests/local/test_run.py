"""A run with the model itself as engine: its files and metrics, every way in which it ends, signals."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from msgspec import structs
from orl_core.errors import EngineError, RunAborted, SessionError
from orl_core.trajectory import Trajectory
from orl_local.engine.weights import save_policy
from orl_local.learner import Learner
from orl_local.run import train
from orl_rollout.edge import interrupt
from orl_rollout.run_folder.checkpoint import checkpoint_in
from orl_rollout.training.rows import Row
from transformers import AutoModelForCausalLM

from tests.kit.nvml import Gpu, driver
from tests.local.checkpoints import weights_of
from tests.local.fakes import End, Player, Recorded, by_row, make_run, rows, summary


def threads() -> list[str]:
    own = ("orl-rollouts", "orl-gpus")  # other tests have threads, too
    return [thread.name for thread in threading.enumerate() if thread.name in own]


def test_run_leaves_its_files(checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(checkpoint.parent)
    run = make_run(tmp_path / "run", checkpoint.name, held_out=3, tensorboard=True)
    with driver(Gpu("GPU-a", 75, 30.0)):
        train(run, Player(run.config, by_row).open)
    kinds = [(row["kind"], row["step"]) for row in rows(run)]
    assert kinds == [("eval", 0), ("train", 1), ("eval", 1), ("train", 2), ("eval", 2)]
    assert [(row["gpu_utilization"], row["gpu0/memory_gib"]) for row in rows(run)] == [(0.75, 30.0)] * 5
    first = rows(run)[1]
    assert first["toy/Env/reward"] == pytest.approx((1.0 + 0.0 + 0.5 + 1.0) / 5)  # five of eight were judged
    common = {"loss", "grad_norm", "entropy", "learning_rate", "clip_fraction", "response_tokens", "train_seconds"}
    assert common <= first.keys()
    assert first["logprob_difference"] < 1e-4
    told = summary(run)
    assert (told["env"], told["steps"], told["rollouts"], told["seconds_warm_start"]) == ("toy/Env", 2, 16 + 9, 1.5)
    assert told["success_before"] == told["success_after"] == pytest.approx(0.5)
    assert told["seconds_total"] > told["seconds_per_step"] > 0
    assert told["model_params"] > 10_000
    assert {"python", "torch", "transformers", "peft", "openreward", "orl-local"} <= told["versions"].keys()
    assert not told.keys() & {"interrupted", "error"}
    before, after = weights_of(checkpoint), weights_of(run.folder / "checkpoint")
    assert any(not torch.equal(before[name], after[name]) for name in before)
    saved = run.folder / "checkpoint"
    noted = checkpoint_in(saved)
    assert noted is not None
    assert (noted.trainer, noted.model, noted.tokenizer, noted.step) == ("local", str(checkpoint), str(saved), 2)
    assert list((run.folder / "tensorboard").iterdir())
    for path in run.folder.rglob("*"):
        assert path.is_dir() or b"sesame" not in path.read_bytes()


def test_actions_that_pay_become_more_likely(checkpoint: Path, tmp_path: Path) -> None:
    """A rollout pays for the share of its sampled ids that are even."""

    class Even(Player):
        async def play(self, request: Any, engine: Any) -> Any:
            outcome = await super().play(request, engine)
            ids = [each for turn in outcome.trajectory.turns for each in turn.action_ids]
            return structs.replace(outcome, reward=sum(each % 2 == 0 for each in ids) / len(ids))

    run = make_run(tmp_path / "run", checkpoint, num_rollout=15, n_samples=16, lr=1e-2)
    train(run, Even(run.config, lambda _: 0.0).open)
    rewards = [row["toy/Env/reward"] for row in rows(run)]
    assert sum(rewards[-3:]) / 3 > sum(rewards[:3]) / 3 + 0.2


FAULTS: dict[str, tuple[type[Exception], str, End, int]] = {
    "breaker": (RunAborted, "the environment is gone", RunAborted("the environment is gone"), 1),
    "bug": (ZeroDivisionError, "broke off", ZeroDivisionError("x"), 1),
    "update": (EngineError, "max_logprob_difference", 0.0, 0),
}


@pytest.mark.parametrize("case", FAULTS)
def test_fault_keeps_the_steps_before_it(checkpoint: Path, tmp_path: Path, case: str) -> None:
    kind, error, end, steps = FAULTS[case]
    run = make_run(tmp_path / "run", checkpoint, max_logprob_difference=0.01 if case == "update" else 10.0)
    player = Recorded(run.config, lambda key: end if key == "train/2/5" else int(key[-1]) / 4)
    with pytest.raises(kind):
        train(run, player.open)
    assert summary(run)["steps"] == steps
    assert error in summary(run)["error"]
    assert (run.folder / "checkpoint" / "model.safetensors").is_file() == (steps > 0)
    assert (player.running, player.opened, player.closed) == (0, 1, 1)
    assert not threads()


def test_player_that_cannot_open_leaves_no_thread(checkpoint: Path, tmp_path: Path) -> None:
    def broken(*_: Any) -> Any:
        raise SessionError("no way")

    with pytest.raises(SessionError, match="no way"):
        train(make_run(tmp_path / "run", checkpoint), broken)
    assert not threads()


def test_importing_the_package_imports_no_torch() -> None:
    heavy = "('torch', 'transformers', 'peft', 'openreward')"
    code = f"import sys, orl_local; sys.exit(any(name in sys.modules for name in {heavy}))"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0


def answer_length(trajectory: Trajectory) -> float:
    return len(trajectory.turns[-1].action.text)


@pytest.mark.slow
def test_plain_rows_alone_are_trained(checkpoint: Path, tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", checkpoint, num_rollout=1)
    lines = [{"prompt": f"Count to {number}."} for number in range(3)]
    chat = {"prompt": [{"role": "user", "content": "Count."}], "label": "1", "metadata": {"rm_type": "math"}}
    run.task_data.write_bytes(b"\n".join(msgspec.json.encode(row) for row in [*lines, chat]))
    trainer = structs.replace(run.config.trainer, task_data=str(run.task_data))
    reward = f"{__name__}:answer_length"
    rollout = structs.replace(run.config.rollout, turn_tokens=6)
    changes: dict[str, Any] = {"environments": {}, "secrets": {}, "reward": reward, "trainer": trainer}
    config = structs.replace(run.config, rollout=rollout, **changes)
    train(structs.replace(run, config=config))
    (row,) = (row for row in rows(run) if row["kind"] == "train")
    assert row["plain/rollouts"] == 8
    assert summary(run)["steps"] == 1


def send(number: signal.Signals) -> None:
    os.kill(os.getpid(), number)


@pytest.mark.parametrize("stage", ["rollouts", "update"])
def test_signal_closes_the_sessions_and_keeps_what_there_is(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    run = make_run(tmp_path / "run", checkpoint, max_tokens_per_gpu=1)
    whole = Learner.update

    def signalled() -> float:
        send(signal.SIGINT)
        return 0.0

    def update(self: Learner, given: list[Row], step: int) -> dict[str, float]:
        if (stage, step) == ("update", 2):
            send(signal.SIGINT)
        return whole(self, given, step)

    monkeypatch.setattr(Learner, "update", update)
    player = Player(run.config, lambda key: signalled if (stage, key) == ("rollouts", "train/2/5") else by_row(key))
    with interrupt.listening() as signals, pytest.raises(interrupt.Interrupted):
        train(run, player.open)
    assert signals.exit_code(0) == 130
    assert (player.running, player.closed) == (0, 1)
    assert summary(run)["interrupted"] is True
    assert [row["step"] for row in rows(run)] == [1]
    assert (run.folder / "checkpoint").is_dir()
    assert not threads()


@pytest.mark.parametrize(("steps", "interval"), [(1, None), (3, 1)])
def test_signals_during_a_save_wait_until_it_is_whole(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: int, interval: int | None
) -> None:
    """After the last step nothing was interrupted; after another one the run ends, and saves nothing twice."""
    run = make_run(tmp_path / "run", checkpoint, num_rollout=steps, save_interval=interval)

    def save(*policy: Any) -> None:
        assert interval or summary(run)["interrupted"]  # it is there before the weights
        for _ in range(2):
            send(signal.SIGINT)
            time.sleep(0.3)
        save_policy(*policy)
        assert not (run.folder / "checkpoint").exists()

    monkeypatch.setattr("orl_local.rank.save_policy", save)
    with interrupt.listening() as signals, pytest.raises(interrupt.Interrupted):
        train(run, Player(run.config, by_row).open)
    assert signals.exit_code(0) == 130
    assert summary(run)["steps"] == 1
    assert summary(run).keys() & {"interrupted", "error"} == ({"interrupted"} if interval else set())
    AutoModelForCausalLM.from_pretrained(run.folder / "checkpoint")
    assert [path.name for path in run.folder.rglob("*checkpoint*")] == ["checkpoint", "orl_checkpoint.json"]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_signal_at_any_moment_leaves_summary_and_weights(checkpoint: Path, tmp_path: Path, seed: int) -> None:
    """`python -m tests.launcher.signal_runs` does the same with whole commands."""
    chance = random.Random(seed)
    number = chance.choice([signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
    run = make_run(tmp_path / "run", checkpoint, held_out=2, save_interval=1)
    player = Player(run.config, by_row)
    timer = threading.Timer(chance.uniform(0, 2), send, (number,))
    with interrupt.listening() as signals:
        timer.start()
        with suppress(interrupt.Interrupted):
            train(run, player.open)
        timer.join()
    assert signals.exit_code(0) == 128 + number
    assert player.opened == player.closed
    assert player.running == 0
    if player.opened:
        told = summary(run)
        assert told.get("interrupted") or told["steps"] == 2
        assert (run.folder / "checkpoint").is_dir() == (told["steps"] > 0)
    for saved in (*run.folder.glob("checkpoint*"), *(run.folder / "trainer").glob("checkpoint-*")):
        AutoModelForCausalLM.from_pretrained(saved)
    assert not threads()
