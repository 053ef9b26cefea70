"""slime's own conversion tool behind `orl convert`, and slime's own count of steps between checkpoints. CPU alone.

From Hugging Face to Megatron slime's tool needs a GPU, and is not shown here.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from orl_launcher.main import main
from orl_rollout.run_folder.checkpoint import checkpoint_in
from orl_rollout.tokenizer.pretrained import load_pretrained

from tests.kit.torch_saved import save_torch_dist, weights_of
from tests.slime.host import of_slime
from tests.trl.checkpoints import write_checkpoint
from tests.two_pythons.converting import refused

pytestmark = pytest.mark.slime
HERE = ["--python", sys.executable]


def test_weights_come_back_from_megatron(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_checkpoint(tmp_path / "model")
    save_torch_dist(tmp_path / "model", tmp_path / "saved", number=19)
    argv = ["saved", "--model", "model", *HERE]
    capsys.readouterr()  # the bars of transformers
    assert "did you mean --chunk-size?" in refused(capsys, "slime", *argv, "--", "--chunk-sise", "3")
    assert main(["convert", "slime", *argv]) == 0
    before, after = weights_of(tmp_path / "model"), weights_of(tmp_path / "saved_hf")
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert load_pretrained("saved_hf").get_vocab() == load_pretrained("model").get_vocab()
    found = checkpoint_in(tmp_path / "saved_hf")
    assert found is not None
    assert (found.format, found.trainer, found.model, found.step) == ("hf", "slime", str(tmp_path / "model"), 20)


def test_save_interval_counts_rollouts() -> None:
    """A step of orl is one rollout of slime; the last one is always saved."""
    saves = of_slime("slime.utils.misc.should_run_periodic_action")
    assert [batch + 1 for batch in range(10) if saves(batch, 3, None, 10)] == [3, 6, 9, 10]
