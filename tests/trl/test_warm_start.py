"""Supervised training on data: exactly the ids and the mask of a datum."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from orl_core import Datum
from orl_rollout.run_folder.contract import WarmStart
from orl_trl.warm_start import train
from orl_trl.warm_start.training import IGNORED, row_of
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from tests.trl.checkpoints import weights_of

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


def datum_of(*response: tuple[int, int]) -> Datum:
    """Return a datum with the prompt 5, 6, 7; `response` has ids with their mask."""
    ids, mask = zip(*response, strict=True)
    none = (0.0,) * len(ids)
    return Datum(
        task_key="t", rollout_id="r", prompt=(5, 6, 7), response=ids, sampled=mask, loss_mask=mask, logprobs=none
    )


DATUM = datum_of((8, 1), (9, 1), (10, 0), (11, 1))


def test_row_trains_what_the_mask_trains() -> None:
    row = row_of(DATUM)
    assert row["input_ids"] == [5, 6, 7, 8, 9, 10, 11]
    assert row["labels"] == [IGNORED, IGNORED, IGNORED, 8, 9, IGNORED, 11]


def test_rows_train_in_their_order(checkpoint: Path, tmp_path: Path) -> None:
    other = datum_of((20, 1), (21, 1))
    start = WarmStart(
        model=str(checkpoint),
        output=tmp_path / "out",
        rows=[DATUM, other],
        order=[0] * 60,  # the second row never trains
        batch_size=2,
        lr=1e-2,
        held_out=[DATUM],
    )
    steps: list[int] = []
    facts = train(start, lambda done, total: steps.append(total - done))
    assert steps == [*range(29, -1, -1)]
    assert facts["held_out_loss"] < 1
    assert facts["train_loss"] < 1
    learnt = train(
        WarmStart(
            model=str(tmp_path / "out"),
            output=tmp_path / "same",
            rows=[DATUM],
            order=[0],
            batch_size=1,
            lr=1e-9,
            held_out=[other],
        ),
        lambda done, total: None,
    )
    assert learnt["held_out_loss"] > 2
    assert weights_of(tmp_path / "same").keys() == weights_of(checkpoint).keys()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_checkpoint_keeps_its_dtype(dtype: torch.dtype, checkpoint: Path, tmp_path: Path) -> None:
    """Engines and trainers read it from config.json: slime compares the weights of both only if they are bfloat16."""
    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=dtype)
    model.save_pretrained(tmp_path / "start")
    AutoTokenizer.from_pretrained(checkpoint).save_pretrained(tmp_path / "start")
    start = WarmStart(
        model=str(tmp_path / "start"), output=tmp_path / "out", rows=[DATUM], order=[0], batch_size=1, lr=1e-3
    )
    train(start, lambda done, total: None)
    assert AutoConfig.from_pretrained(tmp_path / "out").dtype == dtype
    assert {weight.dtype for weight in load_file(tmp_path / "out" / "model.safetensors").values()} == {dtype}


def test_an_interruption_writes_nothing(checkpoint: Path, tmp_path: Path) -> None:
    def stop(done: int, total: int) -> None:
        raise KeyboardInterrupt

    start = WarmStart(model=str(checkpoint), output=tmp_path / "out", rows=[DATUM], order=[0], batch_size=1, lr=1e-3)
    with pytest.raises(KeyboardInterrupt):
        train(start, stop)
    assert not (tmp_path / "out").exists()
