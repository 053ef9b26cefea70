"""Options of `local` alone, and its defaults of shared ones; `settings` has the default learning rates.

Importing it is fast.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from msgspec import Meta, field
from orl_core.config import TrainerConfig
from orl_core.config.checked import Checked
from orl_core.limits import NonNegative, Positive
from orl_rollout.training import DEFAULTS as COURSE

NAME = "local"
DEFAULTS: Mapping[str, Any] = {**COURSE, "adam_beta2": 0.99}


class LocalOptions(Checked, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Set the options of local, which trains on this machine."""

    engine: Annotated[
        str,
        Meta(
            pattern=r"^(auto|sglang|vllm|transformers|https?://[^@?#\s]*)\Z",
            title="auto, sglang, vllm, transformers, or an address (http or https, without login and query)",
            description="Engine of rollouts: sglang or vllm on the GPU that trains, transformers in the training "
            "process, or the address of an SGLang that you serve. auto: sglang, or else vllm, if it can run and the "
            "model is not tiny.",
        ),
    ] = "auto"
    num_gpus: Annotated[Positive, Meta(description="GPUs that take part. Each trains and samples.")] = 1
    rollout_gpus: Annotated[
        NonNegative, Meta(description="GPUs of these that only sample, the last ones; 0: all train and sample.")
    ] = 0
    sharding: Annotated[
        Literal["auto", "none", "fsdp"],
        Meta(
            description="fsdp divides weights, gradients and optimizer over the GPUs that train; none: each has all; "
            "auto: fsdp if one GPU cannot hold them."
        ),
    ] = "auto"
    asynchronous: Annotated[
        bool,
        Meta(
            description="Play the rollouts of the next step while this one trains; needs a server, and memory for both."
        ),
    ] = field(default=False, name="async")
    lora_rank: Annotated[
        Positive | None,
        Meta(description="Rank of LoRA adapters at every linear layer, which train alone; null trains all weights."),
    ] = None
    optimizer: Annotated[
        Literal["adamw", "adamw_8bit", "adafactor"],
        Meta(description="Optimizer; adamw_8bit needs bitsandbytes."),
    ] = "adamw"
    updates: Annotated[
        Positive | None, Meta(description="Updates of a step; null: two, and one if its rollouts are odd.")
    ] = None
    clip_low: Annotated[
        Annotated[float, Meta(ge=0, le=1)] | None,
        Meta(description="How far a ratio may fall below 1; null: as the algorithm says."),
    ] = None
    clip_high: Annotated[
        Annotated[float, Meta(ge=0)] | None,
        Meta(description="How far a ratio may rise above 1; null: as the algorithm says."),
    ] = None
    kl_coef: Annotated[
        float, Meta(ge=0, description="Weight of the KL divergence from the model that training began with.")
    ] = 0.0
    max_grad_norm: Annotated[float, Meta(ge=0, description="Greatest norm of a gradient; 0 does not clip.")] = 1.0
    warmup: Annotated[int, Meta(ge=0, description="Updates until the learning rate is reached.")] = 3
    checkpointing: Annotated[
        Literal["auto", "on", "off"],
        Meta(description="Compute activations again instead of keeping them; auto: if they need more than there is."),
    ] = "auto"
    correction: Annotated[
        Literal["sequence_mask", "sequence_truncate", "token_mask", "token_truncate", "off"],
        Meta(
            description="Weight of a rollout (sequence) or an id (token) in the loss, by its ratio of both logprobs, "
            "trainer's and engine's: mask leaves out what is above the cap, truncate lowers it to the cap."
        ),
    ] = "sequence_mask"
    correction_cap: Annotated[
        Annotated[float, Meta(gt=0)] | None, Meta(description="Greatest ratio of the correction (default: 3).")
    ] = None
    save_total_limit: Annotated[Positive, Meta(description="Checkpoints that stay: the last ones.")] = 2


def own_options(trainer: TrainerConfig) -> LocalOptions:
    """Return the options of this trainer alone."""
    return trainer.section(NAME, LocalOptions)
