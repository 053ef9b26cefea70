"""The training run: play tasks, make rows of the outcomes, and drive a policy step by step. It knows no torch."""

from collections.abc import Mapping
from typing import Any

# Defaults of the options that every trainer obeys, but for those that a trainer sets itself.
DEFAULTS: Mapping[str, Any] = {
    "lr_decay_style": "constant",
    "weight_decay": 0.0,
    "adam_beta1": 0.9,
    "adam_eps": 1e-8,
    "advantage_estimator": "grpo",
    "n_samples": 16,
    "rollout_batch_size": 8,
    "num_rollout": 55,
    "temperature": 1.0,
    "save_interval": 10,
}
