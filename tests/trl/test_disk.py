"""The disk that checkpoints need, and one that fills while TRL trains: nothing that was whole is lost."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs
from orl_core.errors import OrlError, RunAborted
from orl_rollout.memory.model import config_of
from orl_rollout.run_folder import metrics_log
from orl_rollout.run_folder.checkpoint import checkpoint_in
from orl_rollout.run_folder.contract import Run
from orl_trl import plan
from orl_trl.run_plan.disk import MIB, checkpoint_of
from orl_trl.run_plan.resume import check_start
from orl_trl.run_plan.settings import grpo_config
from orl_trl.training.training_run import train
from orl_trl.training.whole_checkpoints import WholeCheckpoints
from transformers import AutoModelForCausalLM

from tests.kit.small_disk import empty, fill, small_disk
from tests.trl.fakes import Player, by_row, make_run, rows, summary


@pytest.mark.parametrize("trainer", [{}, {"lora_rank": 4}, {"flags": {"save_only_model": True}}])
def test_estimate_is_the_size_of_a_checkpoint(checkpoint: Path, tmp_path: Path, trainer: dict[str, Any]):
    run = make_run(tmp_path / "run", checkpoint, num_rollout=1, **trainer)
    train(run, Player(run.config, by_row).open)
    files = [file for file in (run.folder / "trainer" / "checkpoint-2").rglob("*") if file.suffix != ".json"]
    size = sum(file.stat().st_size for file in files if file.name.startswith(("model", "adapter_model", "optimizer")))
    config = config_of(str(checkpoint))
    estimate = checkpoint_of(run, grpo_config(run, parameters=1), config).total
    assert size == pytest.approx(estimate, rel=0.2)  # the headers of many tiny tensors count here


def test_plan_shows_the_disk_of_checkpoints(checkpoint: Path, tmp_path: Path):
    made = plan(make_run(tmp_path / "run", checkpoint, num_rollout=30))
    assert "2 kept and one more" in made.memory
    assert not any("disk" in note for note in made.notes)
    once = structs.replace(make_run(tmp_path / "run", checkpoint, num_rollout=9))
    assert "1 kept and one more" in plan(once).memory


def test_disk_that_is_too_small_is_a_note(checkpoint: Path, tmp_path: Path):
    with small_disk(tmp_path / "disk") as disk:
        run = make_run(disk / "run", checkpoint)
        fill(disk, but=MIB)
        assert any(str(run.folder) in note for note in plan(run).notes)


SECOND = "train/2/0"


def at_step_two(happens: Callable[[], None]) -> Callable[[str], Any]:
    """A script whose first rollout of step 2 lets something happen: the first checkpoint is whole by then."""

    def script(key: str) -> Any:
        if key == SECOND:
            happens()
        return by_row(key)

    return script


def stopped(run: Run, script: Callable[[str], Any]) -> str:
    with pytest.raises(OrlError) as stop:
        train(run, Player(run.config, script).open)
    return str(stop.value)


def holds_only_the_first_checkpoint(run: Run, told: str) -> None:
    assert summary(run)["error"] == told
    assert "interrupted" not in summary(run)
    assert "\n" not in told
    saved = run.folder / "trainer" / "checkpoint-2"
    assert [path.name for path in run.folder.rglob("*checkpoint*") if path.is_dir()] == [saved.name]
    assert not [path for path in run.folder.rglob("*") if path.is_dir() and path not in (saved.parent, saved)]
    AutoModelForCausalLM.from_pretrained(saved)
    check_start(str(saved))
    noted = checkpoint_in(saved)
    assert noted is not None
    assert noted.step == 1


def test_full_disk_in_a_checkpoint_keeps_the_last_whole(checkpoint: Path, tmp_path: Path):
    with small_disk(tmp_path / "disk") as disk:
        run = make_run(disk / "run", checkpoint, save_interval=1, num_rollout=3)
        told = stopped(run, at_step_two(lambda: fill(disk, but=150_000)))
        assert str(run.folder) in told
        holds_only_the_first_checkpoint(run, told)
        assert [row["step"] for row in rows(run)] == [1, 2]


def test_disk_that_fills_for_a_moment_costs_no_step(checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The last save finds room again."""
    run = make_run(tmp_path / "run", checkpoint, save_interval=1, num_rollout=3)
    whole = WholeCheckpoints._save_optimizer_and_scheduler

    def full_between_steps(self: WholeCheckpoints, folder: str) -> None:
        if "checkpoint-4" in folder:
            raise OSError(errno.ENOSPC, "No space left on device", folder)
        whole(self, folder)

    monkeypatch.setattr(WholeCheckpoints, "_save_optimizer_and_scheduler", full_between_steps)
    told = stopped(run, by_row)
    assert summary(run)["error"] == told
    noted = checkpoint_in(run.folder / "checkpoint")
    assert noted is not None
    assert noted.step == 2
    check_start(str(run.folder / "checkpoint"))


def test_end_of_the_run_wins_over_its_failed_save(checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    run = make_run(tmp_path / "run", checkpoint, num_rollout=3)

    def full(self: WholeCheckpoints, folder: str) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", folder)

    monkeypatch.setattr(WholeCheckpoints, "_save_optimizer_and_scheduler", full)

    def script(key: str) -> Any:
        return RunAborted("the environment is gone") if key == SECOND else by_row(key)

    assert stopped(run, script) == "the environment is gone" == summary(run)["error"]
    assert not (run.folder / "checkpoint.unfinished").exists()


def test_full_disk_at_the_end_of_a_step_is_one_error(checkpoint: Path, tmp_path: Path):
    """Nothing more can be written: not the metrics, nor the random state, nor the summary."""
    with small_disk(tmp_path / "disk") as disk:
        run = make_run(disk / "run", checkpoint, save_interval=1, num_rollout=3)
        told = stopped(run, at_step_two(lambda: fill(disk)))
        empty(disk)
        assert str(run.folder) in told
        assert [row.step for row in metrics_log.read(run.folder / "metrics.jsonl")] in (
            [1],
            [1, 2],
        )  # a line may be torn
        check_start(str(run.folder / "trainer" / "checkpoint-2"))
        assert not list(run.folder.rglob("*unfinished*"))


def test_last_two_checkpoints_are_kept(checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The older one goes after the newer one is whole."""
    run = make_run(tmp_path / "run", checkpoint, save_interval=1, num_rollout=4)
    seen: list[list[str]] = []
    remove = shutil.rmtree

    def removed(path: Any, *args: Any, **kwargs: Any) -> None:
        if Path(path).name.startswith("checkpoint-"):
            seen.append(sorted(found.name for found in Path(path).parent.glob("checkpoint-*")))
        remove(path, *args, **kwargs)

    monkeypatch.setattr(shutil, "rmtree", removed)
    train(run, Player(run.config, by_row).open)
    assert seen == [[f"checkpoint-{two * step}" for step in range(first, first + 3)] for first, two in ((1, 2), (2, 2))]
    assert sorted(path.name for path in (run.folder / "trainer").glob("checkpoint-*")) == [
        "checkpoint-6",
        "checkpoint-8",
    ]
