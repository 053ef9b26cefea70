"""orl_trl reproduces the golden gradients, which were frozen from it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kit.gradients import PARTS, SAME, apart, load_cases, part
from tests.trl.freeze_gradients import freeze

QUICK = ("dapo_several", "lora_kl")


@pytest.mark.parametrize("name", [pytest.param(n, marks=() if n in QUICK else pytest.mark.slow) for n in load_cases()])
def test_case_gives_its_gradients_and_weights(name: str, tmp_path: Path) -> None:
    golden = load_cases()[name]
    case, steps, tensors = freeze(golden, tmp_path / "run")
    assert steps == golden.steps
    assert case.norms == pytest.approx(golden.norms, rel=SAME)
    for of in PARTS:
        assert apart(part(tensors, of), golden.tensors(of)) < SAME


@pytest.mark.parametrize("name", ["dapo", "cispo", "sequence_truncate", "turns", "lora"])
def test_several_rows_train_as_one(name: str) -> None:
    one, several = (load_cases()[f"{name}{rows}"] for rows in ("", "_several"))
    assert several.rows.startswith("several")
    for of in PARTS:
        assert apart(several.tensors(of), one.tensors(of)) < SAME
