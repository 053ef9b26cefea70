"""Names of the numbers that every trainer logs about its updates, the same for all trainers in metrics.jsonl.

An adapter says under which names its trainer logs them. A number that a trainer does not log is missing. The trainer's
own names stay too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

TRAINING_METRICS = {
    "loss": "loss of the update",
    "kl": "KL divergence from the reference model",
    "policy_kl": "KL divergence from the policy before the update",
    "entropy": "entropy of the policy, in nats per token",
    "grad_norm": "norm of the gradient before clipping",
    "learning_rate": "learning rate",
    "clip_fraction": "share of tokens whose ratio was clipped",
    "logprob_difference": "mean absolute difference between logprobs of training and of sampling",
    "response_tokens": "mean tokens of a row after its prompt, tool results included",
    "staleness": "mean updates of the engine's weights between sampling and training",
    "rollout_seconds": "seconds in which the trainer waited for rollouts",
    "train_seconds": "seconds of training",
    "weight_sync_seconds": "seconds of copying the weights into the engine",
    "step_seconds": "seconds of the whole step",
    "train_memory_gib": "most memory that tensors of the training process had on the GPU in a step, in GiB",
    "gpu_utilization": "share of the time in which a GPU of this machine was busy, mean of all",
    "gpu_memory_gib": "most memory in use on a GPU of this machine, by all processes, in GiB",
}


def with_common_names(logged: Mapping[str, float], names: Mapping[str, str]) -> dict[str, float]:
    """Return the finite numbers of `logged`, and those of `names` (trainer's name to ours) under ours as well."""
    finite = {name: float(value) for name, value in logged.items() if math.isfinite(value)}
    return {**finite, **{ours: finite[theirs] for theirs, ours in names.items() if theirs in finite}}
