"""The check after a sync: the engine and the trainer give fixed ids the same logprobs.

Without it, weights that arrive wrong or late would train on silently.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from math import isfinite

import torch
from orl_core.errors import EngineError
from transformers import PreTrainedModel

from orl_trl.sglang_control import SglangControl

IDS = 64
BOUND = 0.05  # mean absolute difference of logprobs above which a run stops
METRIC = "canary_logprob_diff"


def canary_ids(vocabulary: int) -> list[int]:
    """Return IDS ids, always the same for a vocabulary of that size."""
    draw = random.Random(0)  # noqa: S311  fixed on purpose
    return [draw.randrange(vocabulary) for _ in range(IDS)]


def logprobs_under(model: PreTrainedModel, ids: Sequence[int]) -> list[float]:
    """Return the logprob of each of `ids` but the first under `model`, without dropout, in fp32."""
    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            row = torch.tensor([list(ids)], device=model.device)
            scores = torch.log_softmax(model(input_ids=row).logits[0, :-1].float(), dim=-1)
            return scores.gather(1, row[0, 1:, None])[:, 0].tolist()
    finally:
        model.train(training)


def check_canary(control: SglangControl, model: PreTrainedModel, *, bound: float = BOUND) -> float:
    """Return the mean absolute difference of the logprobs of engine and trainer, for the metrics (METRIC).

    Raises:
        EngineError: it is above `bound` or not finite, or the engine does not answer.
    """
    ids = canary_ids(model.config.vocab_size)
    engine, trainer = control.logprobs(ids), logprobs_under(model, ids)
    mean = sum(abs(one - other) for one, other in zip(engine, trainer, strict=True)) / len(trainer)
    if not isfinite(mean) or mean > bound:
        raise EngineError(
            f"after a sync, logprobs of engine and trainer differ by {mean:.4f} on average, and {bound:g} is allowed: "
            "SGLang does not compute with the weights of the trainer. Train with a version of SGLang that passes"
        )
    return mean
