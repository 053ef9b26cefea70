"""LoRA: adapters train alone, engines and checkpoints get the merged weights, a run continues its adapters."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from orl_local.engine.lora import ADAPTER, policy_weights, with_adapters
from orl_local.engine.served_engine import Server, WeightSender
from orl_local.run import train
from torch import Tensor
from transformers import Qwen3ForCausalLM

from tests.local.checkpoints import weights_of
from tests.local.fakes import Player, by_row, make_run, rows
from tests.local.stand_in import Direct, served

RANK = 4


@pytest.fixture
def adapted(model: Qwen3ForCausalLM) -> Any:
    """A model with adapters that are not zero."""
    wrapped = with_adapters(copy.deepcopy(model), RANK)
    with torch.no_grad():
        for name, one in wrapped.named_parameters():
            if "lora_B" in name:
                one.normal_(std=0.1)
    return wrapped


def logits(model: Any) -> Tensor:
    with torch.no_grad():
        return model(torch.arange(5, 25)[None]).logits


def test_policy_weights_are_those_of_the_merged_model(model: Qwen3ForCausalLM, adapted: Any):
    found = dict(policy_weights(adapted))
    before = logits(adapted)
    assert found.keys() == model.state_dict().keys()
    merged = copy.deepcopy(model)
    merged.load_state_dict(found)
    torch.testing.assert_close(logits(merged), before, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(logits(adapted), before, atol=0, rtol=0)
    assert (logits(model) - before).abs().max() > 0.1


async def test_an_engine_beside_training_gets_the_merged_weights(adapted: Any, tmp_path: Path):
    with served() as (server, control):
        mine = Server(url=control.url, context_tokens=4096, folder=tmp_path)
        await WeightSender(Direct(adapted), control, mine).send("1")
        merged = dict(policy_weights(adapted))
        assert all(torch.equal(weight, merged[name].to(torch.bfloat16)) for name, weight in server.state.items())


@pytest.fixture(scope="module")
def whole(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two steps, with a checkpoint after the first one."""
    run = make_run(tmp_path_factory.mktemp("whole") / "run", checkpoint, lora_rank=RANK, save_interval=1)
    train(run, Player(run.config, by_row).open)
    return run.folder


def test_checkpoint_has_merged_weights_and_adapters_beside(checkpoint: Path, whole: Path):
    saved = whole / "checkpoint"
    before, after = weights_of(checkpoint), weights_of(saved)
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed == {name for name in before if name.endswith("_proj.weight")}
    assert {path.name for path in (saved / ADAPTER).iterdir()} >= {"adapter_config.json", "adapter_model.safetensors"}
    assert not (saved / "adapter_config.json").exists()


def test_engine_samples_with_the_adapters(whole: Path, checkpoint: Path):
    run = make_run(whole, checkpoint)
    steps = [row for row in rows(run) if row["kind"] == "train"]
    assert len(steps) == 2
    assert all(row["logprob_difference"] < 1e-4 for row in steps)
