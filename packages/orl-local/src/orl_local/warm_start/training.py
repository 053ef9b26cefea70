"""Supervised training on rows that orl rendered: the trainer's own update, with the advantage 1 for each id.

It knows neither episodes nor renderers. Rows train in the order that the caller chose.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean
from typing import Any

import torch
from orl_core.datum import Datum
from orl_core.errors import ConfigError, boundary
from orl_rollout.edge import interrupt
from orl_rollout.run_folder.contract import WarmStart
from orl_rollout.tokenizer.pretrained import load_pretrained
from orl_rollout.training.rows import Row
from transformers import AutoConfig

from orl_local.algorithm import ALGORITHMS
from orl_local.engine.local_model import load_model, on_device
from orl_local.engine.out_of_memory import clear_memory
from orl_local.engine.weights import write_weights
from orl_local.learner import Learner
from orl_local.settings import TOKENS, Settings

WARMUP = 20  # steps: Adam's first steps are as large as the learning rate, whatever the gradient


def train(start: WarmStart, report: Callable[[int, int], None]) -> dict[str, float]:
    """See `orl_rollout.run_folder.contract.WarmStarter.train`."""
    with boundary(ConfigError, f"training on {start.batch_size} rows at a step"):
        model: Any = on_device(load_model(start.model))
        learner = Learner(model, settings_of(start), interrupt.check)
        rows = [row_of(datum, place) for place, datum in enumerate(start.rows)]
        losses: list[float] = []
        for step in range(start.steps):
            chosen = start.order[step * start.batch_size : (step + 1) * start.batch_size]
            losses.append(learner.train_on([[rows[place] for place in chosen]])["nll"])
            report(step + 1, start.steps)
        config = AutoConfig.from_pretrained(start.model, trust_remote_code=False).get_text_config()
        model.to(config.dtype or torch.float32)  # what is saved is what is measured
        held_out = learner.nll([row_of(datum, place) for place, datum in enumerate(start.held_out)])
        tokenizer = load_pretrained(start.model)
        tokenizer.chat_template = start.chat_template or tokenizer.chat_template
        write_weights(model, start.output)
        tokenizer.save_pretrained(str(start.output))
    last: Sequence[float] = losses[-max(1, start.steps // 10) :]
    facts = {"train_loss": fmean(last), "parameters": model.num_parameters()}
    del learner, model
    clear_memory()
    return {**facts, **({} if held_out is None else {"held_out_loss": held_out})}


def row_of(datum: Datum, place: int) -> Row:
    """Return a row whose trained ids have the advantage 1."""
    from msgspec import structs

    return Row(
        datum=structs.replace(datum, rollout_id=str(place)), advantages=tuple(float(mask) for mask in datum.loss_mask)
    )


def settings_of(start: WarmStart) -> Settings:
    """Return the settings of an update that raises the logprob of each trained id."""
    return Settings(
        algorithm=ALGORITHMS["grpo"],
        lr=start.lr,
        decay=start.decay,
        warmup=min(WARMUP, start.steps // 4),
        betas=(0.9, 0.99),
        eps=1e-8,
        weight_decay=0.0,
        optimizer="adamw",
        steps=start.steps,
        updates=1,
        max_grad_norm=1.0,
        kl_coef=0.0,
        correction="off",
        correction_cap=1.0,
        temperature=1.0,
        turn_tokens=1,
        max_logprob_difference=float("inf"),
        seed=start.seed,
        tokens=TOKENS,
    )
