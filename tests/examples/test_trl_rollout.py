"""The example runs as it is, with a random model."""

from __future__ import annotations

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

from tests.local.checkpoints import write_checkpoint


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*(pin_memory|is deprecated)")
def test_five_steps_of_trl(tmp_path: Path, guess_number: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    place = spec_from_file_location("trl_rollout", Path(__file__).parents[2] / "examples/trl_rollout.py")
    assert place is not None
    assert place.loader is not None
    example = module_from_spec(place)
    place.loader.exec_module(example)
    monkeypatch.setattr(example, "FOLDER", tmp_path)
    write_checkpoint(tmp_path / "model")
    log = example.train(tmp_path / "model", guess_number).state.log_history
    assert [row["step"] for row in log if "loss" in row] == [1, 2, 3, 4, 5]
