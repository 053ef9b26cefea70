"""The check after a sync: engine and trainer give the same ids the same logprobs.

Without it, weights that arrive wrong or late would train on silently. The ids are the engine's own, sampled after a
fixed prompt: their logprobs differ little between healthy kernels, where those of unlikely ids would differ much.
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
PROMPT_IDS = 4
# Mean absolute difference of logprobs above which a run stops. Kernels in bf16 differed by 0.003 to 0.028 on an H200
# (docs/evidence/one-gpu.md); weights that are wrong, by more than 0.1.
BOUND = 0.05
METRIC = "canary_logprob_diff"


def canary_prompt(vocabulary: int) -> list[int]:
    """Return PROMPT_IDS ids, always the same for a vocabulary of that size."""
    draw = random.Random(0)  # noqa: S311  fixed on purpose
    return [draw.randrange(vocabulary) for _ in range(PROMPT_IDS)]


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


def check_canary(control: SglangControl, model: PreTrainedModel, *, ids: int = IDS, bound: float = BOUND) -> float:
    """Return the mean absolute difference of the logprobs of `ids` ids, for the metrics (METRIC).

    Raises:
        EngineError: it is above `bound` or not finite, or the engine does not answer.
    """
    prompt = canary_prompt(model.config.get_text_config().vocab_size)
    sampled = control.sample(prompt, ids)
    trainer = logprobs_under(model, [*prompt, *sampled.token_ids])[PROMPT_IDS - 1 :]
    mean = sum(abs(one - other) for one, other in zip(sampled.logprobs, trainer, strict=True)) / max(len(trainer), 1)
    if not trainer or not isfinite(mean) or mean > bound:
        raise EngineError(
            f"after a sync, logprobs of engine and trainer differ by {mean:.4f} on average over {len(trainer)} ids, "
            f"and {bound:g} is allowed: SGLang does not compute with the weights of the trainer. Use a version of "
            "SGLang that passes, or set trainer.engine to transformers"
        )
    return mean
