"""miles' own conversion tools behind `orl convert`, and miles' own count of steps between checkpoints. CPU alone.

miles' tools from and to Megatron need Megatron-LM, and the second a GPU: they are not shown here.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from orl_launcher.main import main
from orl_rollout.run_folder.checkpoint import checkpoint_in

from tests.kit.torch_saved import save_fsdp, weights_of
from tests.miles.host import of_miles
from tests.trl.checkpoints import write_checkpoint

pytestmark = pytest.mark.miles


def test_weights_come_back_from_fsdp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_checkpoint(tmp_path / "model")
    save_fsdp(tmp_path / "model", tmp_path / "saved", number=20)
    assert main(["convert", "miles", "saved", "--model", "model", "--python", sys.executable]) == 0
    before, after = weights_of(tmp_path / "model"), weights_of(tmp_path / "saved_hf")
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    found = checkpoint_in(tmp_path / "saved_hf")
    assert found is not None
    assert (found.format, found.trainer, found.model, found.step) == ("hf", "miles", str(tmp_path / "model"), 20)


def test_save_interval_counts_rollouts() -> None:
    """A step of orl is one rollout of miles; the last one is always saved."""
    saves = of_miles("miles.utils.misc.should_run_periodic_action")
    assert [batch + 1 for batch in range(10) if saves(batch, 3, None, 10)] == [3, 6, 9, 10]
