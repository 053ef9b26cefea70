"""Options of trl alone, the section `trl`, and the defaults of the options that every trainer obeys.

Importing it is fast.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from msgspec import Meta
from orl_core.config import TrainerConfig
from orl_core.config.checked import Checked
from orl_core.limits import Positive

NAME, TOKENS_PER_GPU = "trl", 8192
RolloutEngine = Annotated[
    str,
    Meta(
        pattern=r"^(auto|sglang|transformers|https?://[^@?#\s]*)\Z",
        title="auto, sglang, transformers, or an address (http or https, without login and query)",
    ),
]
DEFAULTS: Mapping[str, Any] = {
    "weight_decay": 0.0,
    "adam_beta2": 0.99,
    "advantage_estimator": "grpo",
    "n_samples": 16,
    "rollout_batch_size": 8,
    "num_rollout": 55,
    "temperature": 1.0,
    "max_tokens_per_gpu": TOKENS_PER_GPU,
    "save_interval": 10,
}


class TrlOptions(Checked, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Set the options of trl, which trains on this machine."""

    engine: Annotated[
        RolloutEngine,
        Meta(
            description="Engine of rollouts: sglang on the GPU that trains, transformers in the training process, or "
            "the address of an SGLang that you serve. auto: sglang if it can run and the model is not tiny."
        ),
    ] = "auto"
    lora_rank: Annotated[
        Positive | None,
        Meta(description="Rank of LoRA adapters at every linear layer, which train alone; null trains all weights."),
    ] = None
    optimizer: Annotated[
        str | None,
        Meta(
            description="Optimizer, by transformers' names: adamw_8bit needs bitsandbytes (default: adamw_torch_fused)."
        ),
    ] = None


def own_options(trainer: TrainerConfig) -> TrlOptions:
    """Return the options of trl alone."""
    return trainer.section(NAME, TrlOptions)
