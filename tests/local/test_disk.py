"""The disk that checkpoints need, and one that fills while a run trains: nothing that was whole is lost."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from orl_core.errors import OrlError, RunAborted
from orl_local import plan
from orl_local.checkpoints import checkpoint_to_load
from orl_local.memory import held, sizes_of
from orl_local.planning import MIB, planned
from orl_local.run import train
from orl_rollout.run_folder import metrics_log
from orl_rollout.run_folder.checkpoint import checkpoint_in
from orl_rollout.run_folder.contract import Run
from transformers import AutoModelForCausalLM

from tests.kit.small_disk import empty, fill, small_disk
from tests.local.fakes import Player, by_row, make_run, rows, summary


def test_estimate_is_the_size_of_a_checkpoint(checkpoint: Path, tmp_path: Path):
    run = make_run(tmp_path / "run", checkpoint, num_rollout=1)
    train(run, Player(run.config, by_row).open)
    files = [file for file in (run.folder / "checkpoint").rglob("*") if file.suffix != ".json"]
    size = sum(file.stat().st_size for file in files if file.name.startswith(("model", "adapter_model", "training")))
    made = planned(run)
    assert made.shape is not None
    estimate = held(made.shape, sizes_of(run.config, made.settings)).total
    assert size == pytest.approx(estimate, rel=0.2)  # the headers of many tiny tensors count here


def test_plan_shows_the_disk_of_checkpoints(checkpoint: Path, tmp_path: Path):
    made = plan(make_run(tmp_path / "run", checkpoint, num_rollout=30))
    assert "2 kept and one more" in made.memory
    assert not any("disk" in note for note in made.notes)
    assert "1 kept and one more" in plan(make_run(tmp_path / "run", checkpoint, num_rollout=9)).memory


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


def saved_step(run: Run) -> int | None:
    """Return the step of the run's checkpoint, which a run can continue."""
    folder = run.folder / "checkpoint"
    noted = checkpoint_in(folder)
    assert noted is not None
    checkpoint_to_load(str(folder))
    return noted.step


def test_full_disk_in_a_checkpoint_keeps_the_last_whole(checkpoint: Path, tmp_path: Path):
    with small_disk(tmp_path / "disk") as disk:
        run = make_run(disk / "run", checkpoint, save_interval=1, num_rollout=3)
        told = stopped(run, at_step_two(lambda: fill(disk, but=150_000)))
        assert str(run.folder) in told
        assert summary(run)["error"] == told
        assert "interrupted" not in summary(run)
        assert "\n" not in told
        assert [path.name for path in run.folder.rglob("*") if path.is_dir()] == ["checkpoint"]
        AutoModelForCausalLM.from_pretrained(run.folder / "checkpoint")
        assert saved_step(run) == 1
        assert [row["step"] for row in rows(run)] == [1, 2]


def fails(*_: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_disk_that_fills_for_a_moment_costs_no_step(checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The last save finds room again."""
    run = make_run(tmp_path / "run", checkpoint, save_interval=1, num_rollout=3)
    saves = iter((torch.save, fails, torch.save))
    monkeypatch.setattr(torch, "save", lambda *args: next(saves)(*args))  # noqa: PLW0108
    told = stopped(run, by_row)
    assert summary(run)["error"] == told
    assert saved_step(run) == 2


def test_end_of_the_run_wins_over_its_failed_save(checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    run = make_run(tmp_path / "run", checkpoint, num_rollout=3)

    def script(key: str) -> Any:
        return RunAborted("the environment is gone") if key == SECOND else by_row(key)

    monkeypatch.setattr(torch, "save", fails)
    assert stopped(run, script) == "the environment is gone" == summary(run)["error"]
    assert not (run.folder / "checkpoint.unfinished").exists()


def test_full_disk_at_the_end_of_a_step_is_one_error(checkpoint: Path, tmp_path: Path):
    """Nothing more can be written: not the metrics, nor the summary."""
    with small_disk(tmp_path / "disk") as disk:
        run = make_run(disk / "run", checkpoint, save_interval=1, num_rollout=3)
        told = stopped(run, at_step_two(lambda: fill(disk)))
        empty(disk)
        assert str(run.folder) in told
        assert [row.step for row in metrics_log.read(run.folder / "metrics.jsonl")] in (
            [1],
            [1, 2],
        )  # a line may be torn
        assert saved_step(run) == 1
        assert not list(run.folder.rglob("*unfinished*"))


@pytest.mark.parametrize("kept", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_last_checkpoints_are_kept(checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: int):
    """The older one goes after the newer one is whole and has its name."""
    run = make_run(tmp_path / "run", checkpoint, save_interval=1, num_rollout=4, save_total_limit=kept)
    seen: list[list[str]] = []
    remove = shutil.rmtree

    def removed(path: Any, *args: Any, **kwargs: Any) -> None:
        if Path(path).name.startswith("checkpoint-") and Path(path).exists():
            seen.append(sorted(found.name for found in Path(path).parent.glob("checkpoint-*")))
            assert checkpoint_in(run.folder / "checkpoint") is not None
        remove(path, *args, **kwargs)

    monkeypatch.setattr(shutil, "rmtree", removed)
    train(run, Player(run.config, by_row).open)
    gone = {1: [["checkpoint-1"], ["checkpoint-2"], ["checkpoint-3"]]}
    assert seen == gone.get(kept, [["checkpoint-1", "checkpoint-2"], ["checkpoint-2", "checkpoint-3"]])
    assert [path.name for path in (run.folder / "trainer").iterdir()] == ["checkpoint-3"][: kept - 1]
    assert saved_step(run) == 4
