"""Correction for the difference between the policy that sampled and the policy that trains, for each trained id.

The engine and the training forward pass compute the same weights with other kernels and another precision, so their
logprobs differ. TRL weighs the loss by the ratio of both, truncated or masked, but only where its own vLLM samples.
`correct_ratios` turns that on for the engines of orl. `importance_ratios` is the same formula for rollouts of several
rows, which TRL does not know. Torch only; it knows no rollout and no engine.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from msgspec import Struct
from orl_core.errors import EngineError
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer

JUMP = 5  # how many times `trainer.max_logprob_difference` a single step may differ


class Synchronized:
    """An engine that samples with the trainer's own weights. It takes the place of TRL's client of vLLM."""

    def sync_weights(self) -> None:
        """Do nothing: the engine has the weights."""


def correct_ratios(trainer: GRPOTrainer) -> None:
    """Let `trainer` use the sampled logprobs as it does with vLLM, if its settings ask for the correction.

    TRL decides by `use_vllm`. After its constructor, that only switches the correction and the call of `sync_weights`.
    """
    if trainer.vllm_importance_sampling_correction:
        vars(trainer).update(use_vllm=True, vllm_generation=Synchronized(), _last_loaded_step=-1)


def check_difference(batch: Mapping[str, Any], most: float) -> None:
    """Refuse a batch that was not sampled with the weights that train, before anything trains on it.

    It sees the token ids that the run itself sampled. A healthy engine in bf16 differs by 0.001 to 0.02 on average, and
    by up to 0.2 where the model is unsure (docs/evidence/one-gpu.md). Swapped tensors, or another model, differ by more
    than 1. So one step may differ JUMP times as much as `most`, which bounds the median of several. `batch` is TRL's.

    Raises:
        EngineError: the mean absolute difference of trained token ids is above that, or not finite.
    """
    if "old_per_token_logps" not in batch or "sampling_per_token_logps" not in batch:
        return
    mask = (batch["completion_mask"] * batch["tool_mask"]).bool()
    size = (batch["old_per_token_logps"] - batch["sampling_per_token_logps"])[mask].abs()
    mean = float(size.mean()) if size.numel() else 0.0
    if not mean <= JUMP * most:
        raise EngineError(
            f"logprobs of engine and trainer differ by {mean:.3f} on average over {size.numel()} sampled token ids, "
            f"and a step may differ by {JUMP * most:g}: the engine does not compute with the weights of the trainer. "
            "Continue from the last checkpoint with --load; if the engine is right, raise "
            "trainer.max_logprob_difference"
        )


class Difference(Struct, frozen=True, kw_only=True):
    """Logprobs of training less those of sampling, float [N, T], 0 where `mask`, bool [N, T], is False.

    `owners`, int [N], has the number of each row's rollout.
    """

    values: torch.Tensor
    mask: torch.Tensor
    owners: torch.Tensor

    def metrics(self, ratios: torch.Tensor) -> dict[str, float]:
        """Return TRL's metrics of the differences and of their `ratios`, over all rows."""
        size = self.values[self.mask].abs()
        if ratios.size(1) == 1:
            firsts = {int(owner): row for row, owner in reversed(list(enumerate(self.owners)))}
            weights = ratios[list(firsts.values()), 0]
        else:
            weights = ratios[self.mask]
        reduced = {
            "sampling_logp_difference": (size, ("mean", "max")),
            "importance_sampling_ratio": (weights, ("min", "mean", "max")),
        }
        return {
            f"sampling/{name}/{how}": float(getattr(torch, how)(values)) if values.numel() else 0.0
            for name, (values, ways) in reduced.items()
            for how in ways
        }


def importance_ratios(difference: Difference, settings: GRPOConfig) -> torch.Tensor:
    """Return the weights of the loss: [N, T] in the modes of tokens, [N, 1] in those of sequences.

    A sequence is the whole rollout, so all rows of a rollout have the same weight (law L7).
    """
    logs, mode = difference.values, settings.vllm_importance_sampling_mode
    least, most = settings.vllm_importance_sampling_clip_min, settings.vllm_importance_sampling_clip_max
    if mode.startswith("sequence"):
        sums = logs.new_zeros(int(difference.owners.max()) + 1).index_add(0, difference.owners, logs.sum(1))
        logs = sums[difference.owners].unsqueeze(1)
    ratios = logs.exp()
    if mode.endswith("truncate"):
        return ratios.clamp(least, most)
    outside = (ratios < (-math.inf if least is None else least)) | (ratios > (math.inf if most is None else most))
    return ratios.masked_fill(outside, 0.0)
