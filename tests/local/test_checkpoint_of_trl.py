"""A checkpoint of the release before, whose trainer was TRL: its weights begin a run, and its state continues none."""

from __future__ import annotations

from pathlib import Path

import pytest
from orl_core.errors import ConfigError
from orl_local.checkpoints import ORDER, STATE, checkpoint_to_load
from orl_rollout.run_folder.checkpoint import Checkpoint, write_note


def test_checkpoint_of_trl_is_refused_with_advice(tmp_path: Path) -> None:
    for name in ("config.json", "trainer_state.json", "optimizer.pt", "scheduler.pt", "rng_state.pth", ORDER):
        (tmp_path / name).write_text("{}", "utf-8")
    write_note(tmp_path, Checkpoint(format="hf", trainer="trl", step=3))
    with pytest.raises(ConfigError, match=f"{STATE} not found.*--model"):
        checkpoint_to_load(str(tmp_path))
