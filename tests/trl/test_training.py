"""A run of TRL: files, metrics, faults, signals."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch
from msgspec import Struct, structs
from orl_core.errors import ConfigError, OrlError, RunAborted
from orl_core.reward import group_advantages
from orl_core.trajectory import Generation, Trajectory
from orl_rollout.edge import interrupt
from orl_rollout.loop.engine import Engine
from orl_rollout.results.outcome import Outcome
from orl_rollout.run_folder.checkpoint import checkpoint_in
from orl_rollout.run_folder.training_metrics import TRAINING_METRICS
from orl_rollout.runtime.runtime import RolloutRequest, Runtime
from orl_trl.engine.in_process_engine import InProcessEngine
from orl_trl.run_plan.resume import RANDOM
from orl_trl.run_plan.settings import grpo_config
from orl_trl.run_plan.training_plan import plan_of
from orl_trl.training.rollouts import Rollouts
from orl_trl.training.training_callback import Training
from orl_trl.training.training_run import quiet_trl, runtime_of, train, trainer_of
from orl_trl.training.trl_metrics import NAMES, trl_metrics
from orl_trl.training.whole_checkpoints import WholeCheckpoints
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from transformers import AutoModelForCausalLM, AutoTokenizer, Trainer

from tests.kit.nvml import Gpu, driver
from tests.kit.tokenizers import template
from tests.trl.checkpoints import weights_of
from tests.trl.fakes import End, Player, by_row, make_run, rows, summary


@pytest.mark.slow
def test_what_does_not_train_stays_out_of_the_baseline(checkpoint: Path, tmp_path: Path):  # shows A27
    run = make_run(tmp_path / "run", checkpoint, num_rollout=1)
    player = Player(run.config, by_row)
    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype="float32")
    settings = grpo_config(run, parameters=1)
    rollouts = Rollouts(plan_of(run, settings), InProcessEngine(model), lambda: player.open(run, ""))
    with quiet_trl(), rollouts:
        trainer = trainer_of(model, str(checkpoint), settings, rollouts)
        trainer.train()
    expected = group_advantages(
        [outcome.reward for outcome in rollouts.outcomes],
        [row // 4 for row in range(8)],
        list(range(8)),
        [outcome.trajectory.trainable for outcome in rollouts.outcomes],
        center=True,
        scale=True,
    )
    assert list(trainer._logs["advantages"]) == pytest.approx(expected, abs=1e-3)
    assert expected[2] == expected[4] == expected[5] == 0.0
    logs = [log for log in trainer.state.log_history if "loss" in log]
    assert len(logs) == 2
    assert all(log["grad_norm"] == log["grad_norm"] for log in logs)


def test_a_run_leaves_its_files(  # shows A27
    checkpoint: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(checkpoint.parent)
    run = make_run(tmp_path / "run", checkpoint.name, held_out=3)
    player = Player(run.config, by_row)
    train(run, player.open)
    kinds = [(row["kind"], row["step"]) for row in rows(run)]
    assert kinds == [("eval", 0), ("train", 1), ("eval", 1), ("train", 2), ("eval", 2)]
    first = rows(run)[1]
    assert first["toy/Env/reward"] == pytest.approx((1.0 + 0.0 + 0.5 + 1.0) / 5)  # five of eight were judged
    assert {"loss", "grad_norm", "entropy", "learning_rate", "rollout_seconds", "train_seconds"} <= first.keys()
    told = summary(run)
    assert told["env"] == "toy/Env"
    assert (told["steps"], told["rollouts"]) == (2, 16 + 9)
    assert told["success_before"] == told["success_after"] == pytest.approx(0.5)
    assert told["seconds_total"] > told["seconds_per_step"] > 0
    assert told["seconds_warm_start"] == 1.5
    assert {"python", "torch", "transformers", "trl", "openreward", "orl-trl"} <= told["versions"].keys()
    assert "interrupted" not in told
    before, after = weights_of(checkpoint), weights_of(run.folder / "checkpoint")
    assert any(not torch.equal(before[name], after[name]) for name in before)
    assert (run.folder / "checkpoint" / "tokenizer.json").is_file()
    noted = checkpoint_in(run.folder / "checkpoint")
    assert noted is not None
    assert (noted.format, noted.trainer, noted.model, noted.step) == ("hf", "trl", str(checkpoint), 2)
    assert noted.tokenizer == str(run.folder / "checkpoint")
    assert "returned None" not in caplog.text
    assert "sesame" not in "".join(path.read_text("utf-8", "replace") for path in run.folder.rglob("*.json*"))


@pytest.mark.slow
def test_tensorboard_has_the_metrics(checkpoint: Path, tmp_path: Path):  # shows E8 F17
    run = make_run(tmp_path / "run", checkpoint, tensorboard=True, num_rollout=1)
    train(run, Player(run.config, by_row).open)
    (file,) = (run.folder / "tensorboard").iterdir()
    events = EventAccumulator(str(file))
    events.Reload()
    assert any("reward" in tag for tag in events.Tags()["scalars"])
    assert "sesame" not in file.read_text("utf-8", "replace")


def test_metrics_tell_the_use_of_the_gpus(checkpoint: Path, tmp_path: Path):  # shows F18
    run = make_run(tmp_path / "run", checkpoint, held_out=3, num_rollout=1)
    with driver(Gpu("GPU-a", 75, 30.0)):
        train(run, Player(run.config, by_row).open)
    assert [(row["gpu_utilization"], row["gpu0/memory_gib"]) for row in rows(run)] == [(0.75, 30.0)] * 3


FAULTS = {
    "breaker": ("train/2/5", RunAborted("the environment is gone"), "the environment is gone"),
    "measurement": ("eval/1/0", RunAborted("the environment is gone"), "the environment is gone"),
    "bug": ("train/2/5", ZeroDivisionError("x"), "broke off"),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", FAULTS)
def test_fault_after_a_step_keeps_the_step(checkpoint: Path, tmp_path: Path, case: str):
    place, fault, error = FAULTS[case]
    run = make_run(tmp_path / "run", checkpoint, held_out=1)
    with pytest.raises(type(fault)):
        train(run, Player(run.config, lambda key: fault if key == place else by_row(key)).open)
    assert summary(run)["steps"] == 1
    assert error in summary(run)["error"]
    assert {"model.safetensors", RANDOM} <= {path.name for path in (run.folder / "checkpoint").iterdir()}
    assert "orl-rollouts" not in [thread.name for thread in threading.enumerate()]


class StaleEngine(Struct, frozen=True):
    """An engine whose logprobs are those of other weights."""

    engine: Engine

    async def generate(self, ids: Sequence[int], sampling: Mapping[str, Any], *, key: str) -> Generation:
        made = await self.engine.generate(ids, sampling, key=key)
        return structs.replace(made, logprobs=tuple(value - 0.4 for value in made.logprobs))


class StalePlayer(Player):
    async def play(self, request: RolloutRequest, engine: Engine) -> Outcome:
        return await super().play(request, StaleEngine(engine))


@pytest.mark.slow
def test_logprobs_of_other_weights_end_the_run(checkpoint: Path, tmp_path: Path):
    run = make_run(tmp_path / "run", checkpoint, num_rollout=20)
    with pytest.raises(OrlError, match="max_logprob_difference"):
        train(run, StalePlayer(run.config, by_row).open)
    assert summary(run)["steps"] == 8
    assert "max_logprob_difference" in summary(run)["error"]


def test_gradient_that_is_not_finite_is_not_applied(checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A run on a GPU applied one, and ended with `SGLang died`, without a word about the weights."""
    step = Trainer.training_step

    def broken(self: Trainer, *arguments: Any) -> Any:
        loss = step(self, *arguments)
        if self.state.global_step == 2:  # the first update of the second step
            model: Any = self.model
            next(model.parameters()).grad[0] = float("nan")
        return loss

    monkeypatch.setattr(Trainer, "training_step", broken)
    run = make_run(tmp_path / "run", checkpoint)
    with pytest.raises(OrlError, match="gradient of update 3"):
        train(run, Player(run.config, by_row).open)
    assert "gradient" in summary(run)["error"]
    weights = AutoModelForCausalLM.from_pretrained(run.folder / "checkpoint").parameters()
    assert all(bool(one.isfinite().all()) for one in weights)


def test_scaled_gradients_are_left_to_accelerate():
    """In fp16 a scale that is too large makes them infinite. Accelerate leaves such an update out."""
    model = torch.nn.Linear(1, 1)
    model.weight.grad = torch.full((1, 1), float("inf"))
    arguments: Any = SimpleNamespace(fp16=True)
    anything: Any = None
    Training.on_pre_optimizer_step(anything, arguments, anything, anything, model=model)


def test_ctrl_c_closes_the_sessions_and_writes_what_there_is(checkpoint: Path, tmp_path: Path):
    run = make_run(tmp_path / "run", checkpoint)

    def script(key: str) -> End:
        def interrupt() -> float:
            os.kill(os.getpid(), signal.SIGINT)
            return 0.0

        return interrupt if key == "train/2/5" else by_row(key)

    player = Player(run.config, script)
    with pytest.raises(KeyboardInterrupt):
        train(run, player.open)
    assert (player.running, player.closed) == (0, 1)
    assert summary(run)["interrupted"] is True
    assert [row["step"] for row in rows(run)] == [1]


@pytest.mark.slow
async def test_the_runs_own_template_plays_and_is_saved(checkpoint: Path, tmp_path: Path):
    own = template("qwen3")
    run = make_run(tmp_path / "run", checkpoint, num_rollout=1)
    run = structs.replace(run, config=structs.replace(run.config, chat_template=own, thinking="keep"))
    async with runtime_of(run, str(checkpoint)) as runtime:
        assert isinstance(runtime, Runtime)
    with pytest.raises(ConfigError, match="effort"):
        async with runtime_of(
            structs.replace(run, config=structs.replace(run.config, chat_template_kwargs={"effort": 1})),
            str(checkpoint),
        ):
            pass
    player = Player(run.config, by_row)
    train(run, player.open)
    assert AutoTokenizer.from_pretrained(run.folder / "checkpoint").chat_template == own


@pytest.mark.parametrize(("ends", "said"), [(True, ""), (False, "neither a `pad_token` nor an `eos_token`")])
def test_tokenizer_without_padding_uses_end_token_or_is_refused(
    checkpoint: Path, tmp_path: Path, *, ends: bool, said: str
):
    bare = tmp_path / "bare"
    AutoModelForCausalLM.from_pretrained(checkpoint, dtype="float32").save_pretrained(bare)
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    tokenizer.pad_token = None
    tokenizer.eos_token = tokenizer.eos_token if ends else None
    tokenizer.save_pretrained(bare)
    run = make_run(tmp_path / "run", bare, num_rollout=1)
    with nullcontext() if ends else pytest.raises(ConfigError, match=said):
        train(run, Player(run.config, by_row).open)
    assert (run.folder / "summary.json").is_file() == ends


def test_importing_the_package_imports_no_torch():
    heavy = "('torch', 'transformers', 'trl', 'openreward', 'datasets')"
    code = f"import sys, orl_trl; sys.exit(any(name in sys.modules for name in {heavy}))"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0


def answer_length(trajectory: Trajectory) -> float:
    return len(trajectory.turns[-1].action.text)


@pytest.mark.slow
def test_plain_rows_alone_are_trained(checkpoint: Path, tmp_path: Path):  # shows A24
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


@pytest.mark.slow
def test_two_signals_during_the_last_save_lose_nothing(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The training is finished: weights, summary and the row of the last step are there, and the run says so."""
    run = make_run(tmp_path / "run", checkpoint, num_rollout=1)
    seen: list[dict[str, object]] = []

    whole = WholeCheckpoints._save_optimizer_and_scheduler

    def save(self: WholeCheckpoints, folder: str) -> None:
        if Path(folder).parent == run.folder:  # else it is the save of an interval
            seen.append(summary(run))  # the summary is there before the weights
            for _ in range(2):
                send(signal.SIGINT)
                time.sleep(0.3)
        whole(self, folder)
        assert not (run.folder / "checkpoint").exists()

    monkeypatch.setattr(WholeCheckpoints, "_save_optimizer_and_scheduler", save)
    with interrupt.listening() as signals:
        train(run, Player(run.config, by_row).open)
    assert signals.exit_code(0) == 130
    assert seen[0]["interrupted"] is True
    assert summary(run)["steps"] == 1
    assert not summary(run).keys() & {"interrupted", "error"}
    AutoModelForCausalLM.from_pretrained(run.folder / "checkpoint")
    assert not list(run.folder.glob("*unfinished*"))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_signal_at_any_moment_leaves_summary_and_weights(checkpoint: Path, tmp_path: Path, seed: int):
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
        told = msgspec.json.decode((run.folder / "summary.json").read_bytes())
        assert told.get("interrupted") or told["steps"] == 2
        assert (run.folder / "checkpoint").is_dir() == (told["steps"] > 0)
    for saved in (*run.folder.glob("checkpoint*"), *(run.folder / "trainer").glob("checkpoint-*")):
        AutoModelForCausalLM.from_pretrained(saved)
    assert "orl-rollouts" not in [thread.name for thread in threading.enumerate()]


def test_numbers_have_common_names() -> None:
    logs = [
        {"loss": 0.5, "entropy": float("nan"), "completions/mean_length": 10.0, "clip_ratio/region_mean": 0.0},
        {"loss": 1.5, "entropy": 0.25, "completions/mean_length": 20.0, "clip_ratio/region_mean": 0.5, "epoch": 1.0},
    ]
    metrics = trl_metrics(logs)
    common = {name: value for name, value in metrics.items() if name in TRAINING_METRICS}
    assert common == pytest.approx({"loss": 1.0, "entropy": 0.25, "response_tokens": 15.0, "clip_fraction": 0.25})
    assert metrics["completions/mean_length"] == 15.0
    assert set(NAMES.values()) <= TRAINING_METRICS.keys()
