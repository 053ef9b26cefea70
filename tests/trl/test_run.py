"""TRL through its public seat: rows, failures, refusals, files, five steps that learn, a signal."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orl_trl
import pytest
import torch
from datasets import Dataset
from msgspec import structs
from orl_core import Trajectory, to_data
from orl_core.config import decode_config
from orl_core.datum import Datum
from orl_core.errors import ConfigError, RunAborted
from orl_rollout import Run, read_journal
from orl_rollout.edge.interrupt import Interrupted
from orl_rollout.run_folder import metrics_log
from orl_rollout.run_folder.checkpoint import checkpoint_in
from orl_trl import run as trl_run
from transformers import AutoModelForCausalLM
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer

from tests.local.checkpoints import weights_of

pytestmark = pytest.mark.filterwarnings("ignore:.*is deprecated:FutureWarning")
OPTIONS = {"n_samples": 8, "rollout_batch_size": 2, "num_rollout": 5, "lr": 1e-2, "save_interval": 2}
EARLY = 300  # ids below it are wanted


def judge(trajectory: Trajectory) -> float:
    """Pay for early ids. An answer that begins with id 7 modulo 8 cannot be judged."""
    ids = trajectory.turns[0].generations[0].token_ids
    if ids[0] % 8 == 7:
        raise ValueError("no judge")
    return sum(one < EARLY for one in ids) / len(ids)


def fail(trajectory: Trajectory) -> float:
    raise ValueError(trajectory.stop_reason)


def interrupt(trajectory: Trajectory) -> float:
    if trajectory.job.rollout_id == "train/2/0":
        os.kill(os.getpid(), signal.SIGINT)
    return judge(trajectory)


def run_of(folder: Path, model: Path | str, *extra: str, function: str = "judge", **more: Any) -> Run:
    tasks = folder / "tasks.jsonl"
    trainer = {"backend": "trl", "model": str(model), "task_data": str(tasks), **OPTIONS, **more.pop("trainer", {})}
    tree = {
        "environments": {},
        "reward": f"tests.trl.test_run:{function}",
        "rollout": {"turn_tokens": 8},
        "eval": {"interval": 2, "samples": 16},
        "trainer": trainer,
        **more,
    }
    rows = [json.dumps({"prompt": f"Say {number}."}) for number in range(5)]
    tasks.write_text("\n".join(rows[:4]), "utf-8")
    (folder / "held.jsonl").write_text(rows[4], "utf-8")
    config = decode_config(tree, "test")
    return Run(config=config, folder=folder, task_data=tasks, eval_data=folder / "held.jsonl", extra=extra)


def lines_of(folder: Path) -> list[tuple[str, int]]:
    return [(row.kind, row.step) for row in metrics_log.read(folder / "metrics.jsonl")]


def summary_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "summary.json").read_bytes())


class Watched(trl_run.Seat):
    """Keeps what TRL gets."""

    rows: list[tuple[Any, ...]] = []

    def __call__(self, prompts: Sequence[str], trainer: GRPOTrainer) -> Any:
        columns = super().__call__(prompts, trainer)
        self.rows += zip(*columns.values(), strict=True)
        return columns


def test_five_steps_learn_from_sampled_ids(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(trl_run, "Seat", Watched)
    Watched.rows.clear()
    orl_trl.train(run_of(tmp_path, checkpoint))
    steps = [("train", step) for step in range(1, 6)]
    assert lines_of(tmp_path) == [
        ("eval", 0), *steps[:2], ("eval", 2), *steps[2:4], ("eval", 4), *steps[4:], ("eval", 5),
    ]  # fmt: skip
    found = [row.metrics for row in metrics_log.read(tmp_path / "metrics.jsonl")]
    assert found[-1]["plain/reward"] > found[0]["plain/reward"] + 0.1
    assert {"loss", "grad_norm", "learning_rate", "entropy", "clip_fraction", "train_seconds"} <= found[1].keys()
    data = {}
    for entry in read_journal(tmp_path):
        trajectory = entry.trajectory
        data[trajectory.job.rollout_id] = to_data(trajectory, reward=entry.reward)[0], trajectory.trainable
    failed = 0
    for place, row in enumerate(Watched.rows):
        datum, trains = data[f"train/{place // 16 + 1}/{place % 16}"]
        failed += not trains
        whole = (datum.prompt, datum.response, datum.logprobs, datum.loss_mask, datum.reward)
        assert row == (whole if trains else ((0,), (0,), (0.0,), (0,), None))
    assert len(Watched.rows) == 80
    assert 0 < failed < 40
    assert "All reward functions" not in caplog.text
    noted = checkpoint_in(tmp_path / "checkpoint")
    assert noted is not None
    assert (noted.trainer, noted.step, noted.model) == ("trl", 5, str(checkpoint))
    assert "error" not in summary_of(tmp_path)
    before, after = weights_of(checkpoint), weights_of(tmp_path / "checkpoint")
    assert any((after[name] != weight).any() for name, weight in before.items())


@pytest.mark.parametrize(("function", "kind"), [("fail", RunAborted), ("interrupt", Interrupted)])
def test_end_is_told_and_weights_are_saved(checkpoint: Path, tmp_path: Path, function: str, kind: type) -> None:
    with pytest.raises(kind):
        orl_trl.train(run_of(tmp_path, checkpoint, function=function))
    told = summary_of(tmp_path)
    assert told["interrupted" if kind is Interrupted else "error"]
    noted = checkpoint_in(tmp_path / "checkpoint")
    assert noted is not None
    assert (noted.step, told["steps"]) == (1, 1) if kind is Interrupted else (2, 2)


def trained(checkpoint: Path, folder: Path, data: list[Datum | None]) -> dict[str, torch.Tensor]:
    """Return the weights after one step on one group."""
    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype="float32")
    seat = trl_run.Seat(model)

    async def answer() -> None:
        await seat.next()
        seat.hand_over(data)

    settings = GRPOConfig(
        str(folder), per_device_train_batch_size=len(data), num_generations=len(data), learning_rate=1e-2,
        max_steps=1, bf16=False, dataloader_pin_memory=False, save_strategy="no", disable_tqdm=True,
    )  # fmt: skip
    dataset = Dataset.from_dict({"prompt": ["key"]})
    with seat.filled(answer()):
        GRPOTrainer(model, orl_trl.reward, settings, dataset, rollout_func=seat).train()
    return model.state_dict()


def test_failed_rollout_does_not_count(checkpoint: Path, tmp_path: Path) -> None:
    """The weights are those of a group without it (L3)."""

    def datum(number: int) -> Datum:
        shown = {"prompt": (5, number), "response": (6, 20 + number), "sampled": (1, 1), "logprobs": (-1.0, -1.0)}
        return Datum(task_key="", rollout_id="", loss_mask=(1, 1), reward=float(number), **shown)

    alone = trained(checkpoint, tmp_path, [datum(0), datum(1)])
    beside = trained(checkpoint, tmp_path, [datum(0), None, datum(1), None])
    for name, weight in alone.items():
        assert torch.allclose(weight, beside[name], atol=1e-6), name
    assert any((weights_of(checkpoint)[name] != weight).any() for name, weight in alone.items())


@pytest.mark.parametrize(
    ("changes", "extra", "subject"),
    [
        ({"thinking": "strip"}, (), "thinking"),
        ({"turn_advantages": True, "reward": None}, (), "turn_advantages"),
        ({"rollout": {"workers": 2}}, (), "rollout.workers"),
        ({"trainer": {"load": "runs/x"}}, (), "load"),
        ({"trainer": {"max_tokens_per_gpu": 8}}, (), "max_tokens_per_gpu"),
        ({"trainer": {"max_logprob_difference": 0.5}}, (), "max_logprob_difference"),
        ({"trainer": {"advantage_estimator": "gspo"}}, (), "estimator"),
        ({"trainer": {"flags": {"fsdp": "full_shard"}}}, (), "fsdp"),
        *(
            ({}, (f"--{name}", "1"), name)
            for name in ("use_vllm", "vllm-mode", "eval_steps", "top-k", "deepspeed", "seed")
        ),
        ({}, ("--sglang-tp=2",), "tp"),
        ({}, ("--leaning-rate=2",), "learning_rate"),
        ({}, ("--beta=much",), "beta"),
        ({}, ("--gradient-accumulation-steps=3",), "gradient_accumulation_steps"),
        ({}, ("--per-device-train-batch-size=5",), "generation_batch_size"),
        ({"trainer": {"model": None}}, (), "--model"),
        ({"trainer": {"rollout_batch_size": 5}}, (), "--rollout-batch-size"),
    ],
)
def test_what_trl_cannot_obey_is_refused(tmp_path: Path, changes: Any, extra: tuple[str, ...], subject: str) -> None:
    run = run_of(tmp_path, "m", *extra, **changes)
    with pytest.raises(ConfigError, match=subject):
        orl_trl.plan(structs.replace(run, config=orl_trl.resolve(run.config, extra)))


def test_several_processes_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match="WORLD_SIZE"):
        orl_trl.resolve(run_of(tmp_path, "m").config, ())


def test_plan_obeys_options_and_flags(tmp_path: Path) -> None:
    run = run_of(tmp_path, "m", "--per-device-train-batch-size=4", "--num-iterations", "2", "--loss-type=cispo")
    plan = orl_trl.plan(run)
    assert "5 steps of 16 rollouts, 20 updates" in plan.command
    assert plan.problems == ()
    assert any("dr_grpo" in note for note in plan.notes)
    settings, _ = trl_run.planned(run)
    assert (settings.learning_rate, settings.loss_type, settings.seed) == (1e-2, "cispo", 0)
