"""Supervised training on data: exactly the ids and the mask of a datum."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from orl_core import Datum
from orl_local.warm_start import train
from orl_rollout.run_folder.contract import WarmStart
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from tests.local.checkpoints import weights_of
from tests.local.distance import ROUNDING, distance
from tests.local.updates import scores


def datum_of(*response: tuple[int, int]) -> Datum:
    """Return a datum with the prompt 5, 6, 7; `response` has ids with their mask."""
    ids, mask = zip(*response, strict=True)
    none = (0.0,) * len(ids)
    return Datum(
        task_key="t", rollout_id="r", prompt=(5, 6, 7), response=ids, sampled=mask, loss_mask=mask, logprobs=none
    )


DATUM = datum_of((8, 1), (9, 1), (10, 0), (11, 1))


OTHER = datum_of((20, 1), (21, 1))


def start_of(checkpoint: Path, folder: Path, *order: int, **more: Any) -> WarmStart:
    settings: dict[str, Any] = {"rows": [DATUM, OTHER], "batch_size": 1, "lr": 1e-3, **more}
    return WarmStart(model=str(checkpoint), output=folder / "out", order=order, **settings)


def cross_entropy(model: Any, *data: Datum) -> torch.Tensor:
    """Return the mean over the ids that the masks train."""
    losses = [
        -scores(model, (*one.prompt, *one.response))[2:][torch.tensor(one.loss_mask) > 0] for one in data
    ]  # prompts have three ids
    return torch.cat(losses).mean()


def test_weights_are_those_of_cross_entropy(checkpoint: Path, tmp_path: Path) -> None:
    """Three steps of a rate that decays to 0, by hand; the second row is the longer one of the last step."""
    start = start_of(checkpoint, tmp_path, 0, 0, 1, 1, 1, 0, batch_size=2, held_out=[OTHER])
    reported: list[tuple[int, int]] = []
    facts = train(start, lambda *numbers: reported.append(numbers))
    model: Any = AutoModelForCausalLM.from_pretrained(checkpoint, dtype="float32")
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.99), weight_decay=0.0)
    loss = torch.zeros(())
    for place, data in enumerate(((DATUM, DATUM), (OTHER, OTHER), (OTHER, DATUM))):
        optimizer.param_groups[0]["lr"] = start.lr * (1 - place / 3)
        optimizer.zero_grad()
        (loss := cross_entropy(model, *data)).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    before, found = weights_of(checkpoint), weights_of(start.output)
    assert found.keys() == before.keys()
    changes = ([one[name] - before[name] for name in before] for one in (found, model.state_dict()))
    assert distance(*changes) < ROUNDING
    assert reported == [(1, 3), (2, 3), (3, 3)]
    assert facts == pytest.approx(
        {
            "train_loss": loss.item(),
            "held_out_loss": cross_entropy(model, OTHER).item(),
            "parameters": model.num_parameters(),
        }
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_checkpoint_keeps_its_dtype(dtype: torch.dtype, checkpoint: Path, tmp_path: Path) -> None:
    """Engines and trainers read it from config.json: slime compares the weights of both only if they are bfloat16."""
    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=dtype)
    model.save_pretrained(tmp_path / "start")
    AutoTokenizer.from_pretrained(checkpoint).save_pretrained(tmp_path / "start")
    train(start_of(tmp_path / "start", tmp_path, 0), lambda done, total: None)
    assert AutoConfig.from_pretrained(tmp_path / "out").dtype == dtype
    assert {weight.dtype for weight in load_file(tmp_path / "out" / "model.safetensors").values()} == {dtype}


def test_an_interruption_writes_nothing(checkpoint: Path, tmp_path: Path) -> None:
    def stop(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(start_of(checkpoint, tmp_path, 0), stop)
    assert not (tmp_path / "out").exists()
