"""One Adam step from the same LoRA start: the weights at the server are those of TRL."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs
from orl_core.datum import Datum
from orl_core.estimators import ESTIMATORS
from orl_rollout.results.outcome import Outcome
from orl_rollout.training.rows import rows_of, trained_ids
from orl_tinker.adapters import Adapters, Start, Update
from orl_tinker.options import TinkerOptions
from orl_tinker.rows import tinker_datum
from orl_trl.engine.in_process_engine import InProcessEngine
from orl_trl.run_plan.settings import grpo_config
from orl_trl.run_plan.training_plan import plan_of
from orl_trl.training.rollouts import Rollouts
from orl_trl.training.training_run import quiet_trl, trainer_of
from peft import get_peft_model_state_dict
from tinker import AdamParams
from torch import Tensor
from transformers import AutoModelForCausalLM

from tests.tinker.serving import Served
from tests.trl.fakes import make_run
from tests.trl.test_several_rows import Recorded

RANK, LR = 4, 1e-2
MEMBERS = 4
FLAGS = {"warmup_steps": 0, "per_device_train_batch_size": 2 * MEMBERS, "max_grad_norm": 1.0}


def by_trl(
    checkpoint: Path, folder: Path, *, split: bool
) -> tuple[dict[str, Tensor], dict[str, Tensor], Sequence[Outcome]]:
    """The adapters before and after one update of a step, and what was played."""
    run = make_run(folder, checkpoint, n_samples=MEMBERS, num_rollout=1, lr=LR, flags=FLAGS, lora_rank=RANK)
    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype="float32")
    settings = grpo_config(run, parameters=1)
    played = Recorded(AutoModelForCausalLM.from_pretrained(checkpoint, dtype="float32"), split=split, noise=0.0)
    with quiet_trl(), Rollouts(plan_of(run, settings), InProcessEngine(model), played.open) as rollouts:
        trainer = trainer_of(model, str(checkpoint), settings, rollouts, lora_rank=RANK)
        trainer.max_logprob_difference = math.inf
        before = copy_of(trainer.model)
        trainer.train()
        assert trainer.state.global_step == 1
    return before, copy_of(trainer.model), rollouts.outcomes


def copy_of(model: Any) -> dict[str, Tensor]:
    return {name: one.detach().clone() for name, one in get_peft_model_state_dict(model).items()}


def ended(row: Datum) -> Datum:
    """A row of one turn, whose action ends it."""
    return structs.replace(row, ends=(len(row.response) - 1,))


@pytest.mark.parametrize("split", [False, True], ids=["one row", "several rows"])
@pytest.mark.parametrize("loss", ["importance_sampling", "ppo", "cispo"])
def test_one_step_equals_that_of_trl(server: Served, checkpoint: Path, tmp_path: Path, split: bool, loss: str):
    before, after, outcomes = by_trl(checkpoint, tmp_path / "run", split=split)
    outcomes = [structs.replace(one, datums=tuple(map(ended, one.datums))) for one in outcomes] if split else outcomes
    rows = rows_of(outcomes, MEMBERS, ESTIMATORS["grpo"], turns=False)
    adam = AdamParams(learning_rate=LR, beta1=0.9, beta2=0.99, eps=1e-8, weight_decay=0.0, grad_clip_norm=1.0)

    async def step() -> None:
        own = TinkerOptions(tinker_url=server.url, lora_rank=RANK, loss_fn=loss)  # pyright: ignore[reportArgumentType]
        async with Adapters(own, Start(model=str(checkpoint), seed=0), 60.0) as adapters:
            (adapted,) = server.server.models.values()
            adapted.load(before)
            await adapters.update(Update([tinker_datum(row, trained_ids(rows)) for row in rows], adam))

    asyncio.run(step())
    (adapted,) = server.server.models.values()
    weights = adapted.weights()
    assert weights.keys() == after.keys()
    moved = max(float((weight - before[name]).abs().max()) for name, weight in after.items())
    apart = max(float((weight - after[name]).abs().max()) for name, weight in weights.items())
    assert moved > LR / 2
    assert apart < 1e-5
