"""One update at the server has the golden gradient of LoRA, in one row or several."""

from __future__ import annotations

import asyncio

import pytest
from orl_core.config import TrainerConfig
from orl_rollout.training.rows import trained_ids
from orl_tinker.adapters import Adapters
from orl_tinker.run import tinker_datum
from safetensors.torch import load_file
from tinker import AdamParams, Datum
from torch import Tensor

from tests.kit.gradients import ADAPTERS, MODEL, RANK, SAME, apart, gradients_of, load_cases
from tests.tinker.serving import Served


@pytest.mark.parametrize("name", ["lora", "lora_several"])
@pytest.mark.parametrize(
    "loss",
    ["importance_sampling", *(pytest.param(loss, marks=pytest.mark.slow) for loss in ("ppo", "cispo"))],
)
def test_first_update_has_the_golden_gradient(server: Served, name: str, loss: str) -> None:
    case = load_cases()[name]
    first, second = case.steps[0]
    rows = [tinker_datum(row, trained_ids([*first, *second])) for row in first]
    found: dict[str, Tensor] = {}

    async def step() -> None:
        own = {"tinker_url": server.url, "lora_rank": RANK, "loss_fn": loss}
        trainer = TrainerConfig(sections={"tinker": own})
        async with Adapters(trainer, str(MODEL), "", 60.0) as adapters:
            (adapted,) = server.server.models.values()
            adapted.load(load_file(ADAPTERS))
            # No rate: the weights stay, and the answer has their logprobs, which are the old ones of a first update.
            trained = await adapters.update(rows, AdamParams(learning_rate=0.0))
            old = [one["logprobs"] for one in trained.loss_fn_outputs]
            again = [
                Datum(model_input=row.model_input, loss_fn_inputs={**row.loss_fn_inputs, "logprobs": logprobs})
                for row, logprobs in zip(rows, old, strict=True)
            ]
            adapted.optimizer.register_step_pre_hook(lambda *_: found.update(gradients_of(adapted.model)))
            await adapters.update(again, AdamParams(learning_rate=0.0, grad_clip_norm=0.0))

    asyncio.run(step())
    assert apart({key: 2 * one for key, one in found.items()}, case.tensors("first")) < SAME
