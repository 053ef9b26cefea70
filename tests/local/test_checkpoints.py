"""Checkpoints: what is in them, and runs that continue them, which equal one run bit for bit."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec import structs
from orl_core.errors import ConfigError, RunAborted
from orl_local.checkpoints import ORDER, STATE
from orl_local.engine.lora import ADAPTER
from orl_local.planning import planned
from orl_local.run import train
from orl_rollout.run_folder.checkpoint import CHECKPOINT_TRACKER, RELEASE, checkpoint_in
from orl_rollout.run_folder.contract import Run
from safetensors.torch import load_file
from transformers import AutoTokenizer

from tests.kit.tokenizers import template
from tests.local.fakes import End, Recorded, make_run, rows, summary

TASKS, STEPS = 5, 4  # an epoch has two steps, and leaves a task out
RANKS = [None, 4]


def run_in(folder: Path, checkpoint: Path, **trainer: Any) -> Run:
    changes: dict[str, Any] = {
        "num_rollout": STEPS,
        "lr_decay_style": "linear",
        "correction": "off",
        "kl_coef": 0.05,
        **trainer,
    }
    run = make_run(folder, checkpoint, count=TASKS, max_logprob_difference=1e9, **changes)
    return structs.replace(run, config=structs.replace(run.config, chat_template=template("qwen3"), thinking="keep"))


def played(folder: Path, checkpoint: Path, ends: int = 0, **trainer: Any) -> Run:
    """Train; the environment is gone in step `ends`."""
    run = run_in(folder, checkpoint, **trainer)

    def script(key: str) -> End:
        return RunAborted("the environment is gone") if key.startswith(f"train/{ends}/") else int(key[-1]) / 4

    with pytest.raises(RunAborted) if ends else nullcontext():
        train(run, Recorded(run.config, script).open)
    return run


@pytest.fixture(scope="module", params=RANKS, ids=["all", "lora"])
def whole(request: pytest.FixtureRequest, checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run of four steps, saved after two."""
    return played(
        tmp_path_factory.mktemp("whole") / "run", checkpoint, save_interval=2, warmup=1, lora_rank=request.param
    )


def rank_of(run: Run) -> int | None:
    return run.config.trainer.sections["local"]["lora_rank"]


def same(one: Path, other: Path) -> None:
    """Compare every tensor and number of two checkpoints, bit for bit."""

    def content(saved: Path) -> dict[str, Any]:
        weights = {str(file.relative_to(saved)): load_file(file) for file in saved.rglob("*.safetensors")}
        return {**weights, STATE: torch.load(saved / STATE, weights_only=True)}

    torch.testing.assert_close(content(one), content(other), rtol=0, atol=0)


def numbers(run: Run) -> list[dict[str, Any]]:
    """Return the lines of metrics, but for what a clock says."""
    clock = ("seconds", "time")
    return [{name: value for name, value in row.items() if not name.endswith(clock)} for row in rows(run)]


@pytest.mark.parametrize("stopped", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_two_runs_equal_one(checkpoint: Path, tmp_path: Path, whole: Run, stopped: int) -> None:
    before = played(tmp_path / "before", checkpoint, ends=stopped + 1, warmup=1, lora_rank=rank_of(whole))
    place = before.folder / "checkpoint"
    if stopped == 2:
        same(place, whole.folder / "trainer" / "checkpoint-2")
    after = played(tmp_path / "after", checkpoint, load=str(place), warmup=1, lora_rank=rank_of(whole))
    same(after.folder / "checkpoint", whole.folder / "checkpoint")
    assert [*numbers(before), *numbers(after)] == numbers(whole)
    assert len(numbers(whole)) == STEPS
    told = summary(after)
    assert (told["resumed_from"], told["resumed_step"], told["steps"]) == (str(place), stopped, STEPS)
    noted = checkpoint_in(after.folder / "checkpoint")
    assert noted is not None
    assert (noted.model, noted.step) == (str(checkpoint), STEPS)


def test_checkpoint_has_all_that_is_needed(checkpoint: Path, whole: Run) -> None:
    saved = whole.folder / "checkpoint"
    assert AutoTokenizer.from_pretrained(saved).chat_template == template("qwen3")
    weights = load_file(saved / "model.safetensors")
    assert weights.keys() == load_file(checkpoint / "model.safetensors").keys()  # tied ones once
    assert {one.dtype for one in weights.values()} == {torch.float32}
    assert (saved / ADAPTER).is_dir() == (rank_of(whole) is not None)


CHANGED: dict[str, Any] = {
    "lr": 5e-4,
    "adam_beta2": 0.5,
    "weight_decay": 0.3,
    "seed": 4,
    "optimizer": "adafactor",
    "n_samples": 2,
    "rollout_batch_size": 1,
    "advantage_estimator": "dr_grpo",
    "clip_high": 0.3,
    "updates": 1,
    "kl_coef": 0.1,
    "correction": "token_mask",
    "lora_rank": 8,
}


@pytest.mark.parametrize("name", CHANGED)
@pytest.mark.parametrize("whole", [None], indirect=True)
def test_setting_that_continues_differently_is_refused(checkpoint: Path, tmp_path: Path, whole: Run, name: str) -> None:
    changes: dict[str, Any] = {"load": str(whole.folder / "checkpoint"), "warmup": 1, "num_rollout": 9}
    changes[name] = CHANGED[name]
    with pytest.raises(ConfigError, match=f"`{name}`"):
        planned(run_in(tmp_path / "run", checkpoint, **changes))
    for allowed in (name, f"mask,trainer.{name}", f"trainer.local.{name}"):
        run = run_in(tmp_path / "run", checkpoint, **changes, allow_changes=allowed)
        if name in ("optimizer", "lora_rank"):  # whose states are others
            with pytest.raises(ConfigError, match=f"`{name}`"):
                planned(run)
        else:
            assert planned(run).schedule.done == STEPS


@pytest.mark.parametrize("whole", [None], indirect=True)
def test_run_without_steps_or_with_other_tasks_is_refused(checkpoint: Path, tmp_path: Path, whole: Run) -> None:
    changes: dict[str, Any] = {"load": str(whole.folder / "checkpoint"), "warmup": 1}
    run = run_in(tmp_path / "run", checkpoint, **changes)
    with pytest.raises(ConfigError, match="--num-rollout"):
        planned(run)
    run.task_data.write_bytes(run.task_data.read_bytes().splitlines(keepends=True)[0] * 2)
    with pytest.raises(ConfigError, match=r"tasks\.jsonl"):
        planned(run)


def test_what_no_run_continues_is_refused_with_what_to_do(checkpoint: Path, tmp_path: Path) -> None:
    saved = tmp_path / "megatron"
    (saved / RELEASE).mkdir(parents=True)
    (saved / CHECKPOINT_TRACKER).write_text(RELEASE)
    for load, advice in ((saved, "orl convert"), (checkpoint, f"{STATE}, {ORDER} .*--model"), (tmp_path, "--load")):
        with pytest.raises(ConfigError, match=advice):
            planned(run_in(tmp_path / "run", checkpoint, load=str(load)))
