"""Supervised training on rows that orl rendered: the trainer's own update, with the advantage 1 for each id.

It knows neither episodes nor renderers. Rows train in the order that the caller chose.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean
from typing import Any

import torch
from msgspec import structs
from orl_core.datum import Datum
from orl_core.errors import ConfigError, boundary
from orl_rollout.edge import interrupt
from orl_rollout.run_folder.contract import WarmStart
from orl_rollout.training.rows import Row
from transformers import AutoConfig

from orl_local.engine.local_model import clear_memory, load_model, on_device
from orl_local.engine.weights import policy_of, save_policy
from orl_local.learner import Learner
from orl_local.settings import Settings

WARMUP = 20  # steps: Adam's first steps are as large as the learning rate, whatever the gradient


def train(start: WarmStart, report: Callable[[int, int], None]) -> dict[str, float]:
    """See `orl_rollout.run_folder.contract.WarmStarter.train`."""
    settings = Settings(
        steps=start.steps,
        lr=start.lr,
        lr_decay_style=start.decay,
        warmup=min(WARMUP, start.steps // 4),
        seed=start.seed,
    )
    with boundary(ConfigError, f"training on {start.batch_size} rows at a step"):
        model: Any = on_device(load_model(start.model))
        learner = Learner(model, settings, interrupt.check)
        rows, losses = rows_of(start.rows), list[float]()
        for step in range(start.steps):
            chosen = start.order[step * start.batch_size : (step + 1) * start.batch_size]
            losses.append(learner.train_on([[rows[place] for place in chosen]])["nll"])
            report(step + 1, start.steps)
        facts = {"train_loss": fmean(losses[-max(1, start.steps // 10) :]), "parameters": model.num_parameters()}
        config = AutoConfig.from_pretrained(start.model, trust_remote_code=False).get_text_config()
        model.to(config.dtype or torch.float32)  # what is saved is what is measured
        if start.held_out:
            facts["held_out_loss"] = learner.nll(rows_of(start.held_out))
        save_policy(model, policy_of(model), start.model, start.chat_template, start.output)
    del learner, model
    clear_memory()
    return facts


def rows_of(data: Sequence[Datum]) -> list[Row]:
    """Return a rollout of one row for each of `data`, whose trained ids have the advantage 1."""
    return [
        Row(datum=structs.replace(datum, rollout_id=str(place)), advantages=tuple(map(float, datum.loss_mask)))
        for place, datum in enumerate(data)
    ]
