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

NAME = "tinker"
Address = Annotated[
    str, Meta(pattern=r"^https?://[^@?#\s]*\Z", title="an address: http or https, without login and query")
]
OLDEST = (0, 25)  # SDK
Threshold = Annotated[float, Meta(ge=0)]
DEFAULTS: Mapping[str, Any] = {
    "lr": 4e-5,
    "lr_decay_style": "constant",
    "weight_decay": 0.0,
    "adam_beta1": 0.9,
    "adam_beta2": 0.95,
    "adam_eps": 1e-8,
    "advantage_estimator": "grpo",
    "n_samples": 16,
    "rollout_batch_size": 8,
    "num_rollout": 55,
    "temperature": 1.0,
    "save_interval": 10,
}


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
    if own.loss_fn == "importance_sampling" and own.loss_config:
        raise ConfigError("`loss_fn: importance_sampling` has no thresholds: remove them, or set `loss_fn: ppo`")
    if trainer.temperature != 1.0:
        raise ConfigError(
            f"`temperature` is {trainer.temperature}, and the server trains the policy at 1. Remove `temperature`"
        )
    if trainer.advantage_estimator != "grpo":
        raise ConfigError(
            f"`advantage_estimator` is {trainer.advantage_estimator}, and tinker has grpo alone. Set it to grpo"
        )
    if trainer.max_tokens_per_gpu:
        raise ConfigError("`max_tokens_per_gpu` is set, and the server sizes its own micro-batches. Remove it")
    if (trainer.n_samples or 0) < 2:
        raise ConfigError("`n_samples` is 1, and a rollout is compared with its group: give 2 or more (--n-samples)")
    if extra or trainer.own_flags:
        flag = next(iter((*extra, *trainer.own_flags)))
        raise ConfigError(f"`{flag}`: the server takes no flags. The options are in `orl train tinker --help`")
