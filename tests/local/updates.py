"""One step of a Learner on rows of a small model, with the gradient of each of its updates."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from msgspec import structs
from orl_core.datum import Datum
from orl_core.estimators import ESTIMATORS
from orl_local.engine.local_model import full, load_model, sharded
from orl_local.engine.lora import with_adapters
from orl_local.learner import ALONE, Learner, Peers
from orl_local.settings import Settings
from orl_rollout.results.outcome import Outcome
from orl_rollout.training.rows import Row, rows_of
from torch import Tensor

from tests.kit.paid_turns import outcome
from tests.kit.paid_turns import split as apart

WHOLE = 10**6
SETTINGS = Settings(
    lr=1e-3,
    steps=10,
    max_grad_norm=0.0,
    correction_cap=1.0,
    turn_tokens=8,
    max_logprob_difference=1e9,
    tokens=WHOLE,
)


def scores(model: Any, ids: Sequence[int]) -> Tensor:
    """Return the logprobs of all ids but the first, without any part of orl."""
    tokens = torch.tensor([[*ids]])
    return model(tokens).logits[0, :-1].float().log_softmax(-1).gather(1, tokens[0, 1:, None])[:, 0]


def rows_for(model: Any, *, split: bool = False) -> list[Row]:
    """Return six rollouts of one to three paid turns, whose logprobs are about those of `model`.

    `split` gives each turn a row of its own, with the same contexts.
    """
    outcomes: list[Outcome] = []
    for number in range(6):
        turns = [
            ([5 + at, 6 + number, 7], [*range(20 + number + 10 * at, 24 + 2 * number + 10 * at)], (number + at) % 3 / 2)
            for at in range(1 + number % 3)
        ]
        one = apart(outcome(turns)) if split else outcome(turns)
        outcomes.append(structs.replace(one, datums=tuple(_scored(datum, model, number) for datum in one.datums)))
    return rows_of(outcomes, 3, ESTIMATORS["grpo"], turns=True)


@torch.no_grad()
def _scored(datum: Datum, model: Any, number: int) -> Datum:
    ids = (*datum.prompt, *datum.response)
    noise = 0.1 * torch.sin(10.0 * torch.arange(1, len(ids)) + number)
    logprobs = (scores(model, ids) + noise)[len(datum.prompt) - 1 :].tolist()
    return structs.replace(datum, rollout_id=str(number), logprobs=tuple(logprobs))


class Step(NamedTuple):
    """The gradients of the updates of a step, and its numbers."""

    gradients: list[list[Tensor]]
    numbers: dict[str, float]


def learner_of(checkpoint: Path, model: Any = None, peers: Peers = ALONE, **changes: Any) -> Learner:
    """Return a learner of the checkpoint, or of `model`, in fp32, with adapters if `lora_rank` is set."""
    settings = structs.replace(SETTINGS, **changes)
    model = model or load_model(str(checkpoint))
    torch.manual_seed(0)
    if settings.lora_rank:
        model = with_adapters(model, settings.lora_rank)
    first = load_model(str(checkpoint)) if settings.kl_coef else None
    if peers.sharded:
        model, first = sharded(model), first and sharded(first)
    return Learner(model, settings, lambda: None, first, peers)


def step_of(learner: Learner, rows: Sequence[Row], step: int = 1) -> Step:
    """Let `learner` make a step."""
    gradients: list[list[Tensor]] = []

    def note(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        gradients.append([full(one.grad).clone() for group in optimizer.param_groups for one in group["params"]])

    handle = learner.optimizer.register_step_pre_hook(note)
    numbers = learner.update(rows, step)
    handle.remove()
    return Step(gradients, numbers)
