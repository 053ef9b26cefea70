"""Options of this trainer alone, and the defaults of the options that every trainer obeys.

Importing it is fast. Adam's defaults are written out, because the SDK has others than the other trainers of orl.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Annotated, Any, Literal

from msgspec import Meta
from orl_core.config import RunConfig, TrainerConfig
from orl_core.config.checked import Checked
from orl_core.errors import ConfigError
from orl_core.limits import Positive
from orl_rollout.training import DEFAULTS as COURSE

NAME = "tinker"
Address = Annotated[
    str, Meta(pattern=r"^https?://[^@?#\s]*\Z", title="an address: http or https, without login and query")
]
OLDEST = (0, 25)  # SDK
Threshold = Annotated[float, Meta(ge=0)]
DEFAULTS: Mapping[str, Any] = {**COURSE, "lr": 4e-5, "adam_beta2": 0.95}


class TinkerOptions(Checked, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Set the options of tinker, which trains LoRA adapters on a server."""

    tinker_url: Annotated[
        Address | None, Meta(description="Address of the server (default: TINKER_BASE_URL, else Tinker itself).")
    ] = None
    lora_rank: Annotated[Positive, Meta(description="Rank of the LoRA adapters.")] = 32
    loss_fn: Annotated[
        Literal["importance_sampling", "ppo", "cispo"], Meta(description="Loss, by the server's name.")
    ] = "ppo"
    clip_low_threshold: Annotated[
        Threshold | None, Meta(description="Least ratio of both policies in the loss; null: the server's choice.")
    ] = None
    clip_high_threshold: Annotated[
        Threshold | None, Meta(description="Greatest ratio of both policies in the loss; null: the server's choice.")
    ] = None
    grad_clip_norm: Annotated[
        float, Meta(ge=0, description="Greatest norm of the gradient of an update; 0 does not clip.")
    ] = 1.0

    @property
    def loss_config(self) -> dict[str, float]:
        """Return the loss's own settings."""
        named = {name: getattr(self, name) for name in ("clip_low_threshold", "clip_high_threshold")}
        return {name: value for name, value in named.items() if value is not None}


def own_options(trainer: TrainerConfig) -> TinkerOptions:
    """Return the options of this trainer alone."""
    return trainer.section(NAME, TinkerOptions)


def check_options(config: RunConfig, extra: Sequence[str]) -> None:
    """Refuse options that would change what is trained without a word, and an SDK that is too old.

    Raises:
        ConfigError: there is one; the message names it.
    """
    sdk = version("tinker")
    if tuple(map(int, sdk.split(".")[:2])) < OLDEST:
        raise ConfigError(f"tinker {sdk} is installed, and orl-tinker needs 0.25 or newer: uv pip install -U tinker")
    own, trainer = own_options(config.trainer), config.trainer.with_defaults(DEFAULTS)
    refused = {
        "a threshold: `loss_fn: importance_sampling` has none": own.loss_fn == "importance_sampling"
        and own.loss_config,
        "`temperature`: the server trains the policy at 1": trainer.temperature != 1.0,
        "`advantage_estimator`: tinker has grpo alone": trainer.advantage_estimator != "grpo",
        "`max_tokens_per_gpu`: the server sizes its own micro-batches": trainer.max_tokens_per_gpu,
        **{f"`{word}`: the server takes no flags": True for word in (*extra, *trainer.own_flags)},
    }
    for what in (what for what, is_set in refused.items() if is_set):
        raise ConfigError(f"tinker does not take {what}. Remove it")
