"""The disk that checkpoints need: what doctor and dry run show, against the files of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec import structs
from orl_rollout.memory.model import config_of
from orl_trl import plan
from orl_trl.run_plan.disk import MIB, checkpoint_of
from orl_trl.run_plan.settings import grpo_config
from orl_trl.training.training_run import train

from tests.kit.small_disk import fill, small_disk
from tests.trl.fakes import Player, by_row, make_run


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
