"""What is refused, and defaults of the options that are obeyed. Importing it is fast."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from orl_core.config import RunConfig
from orl_core.config.trainer import MAX_LOGPROB_DIFFERENCE
from orl_core.errors import ConfigError

DEFAULTS = {"n_samples": 16, "rollout_batch_size": 8, "num_rollout": 55, "temperature": 1.0, "save_interval": 10}
# Fields of GRPOConfig by which TRL would sample, evaluate, shard, continue, or end.
REFUSED = (
    "(use_)?vllm.*|.*transformers_.*|temperature|top_[kp]|min_p|repetition_penalty|generation_.*|cache_implementation"
    "|.*num_generations|.*eval.*|fsdp.*|deepspeed|parallelism_config|resume_from_checkpoint|max_steps|num_train_epochs|(data_)?seed"
)


def resolve(config: RunConfig, extra: Sequence[str] = ()) -> RunConfig:
    """Return `config` as it is, once what TRL cannot obey is refused. `extra` are flags of GRPOConfig.

    Raises:
        ConfigError: there is such a setting.
    """
    trainer = config.trainer
    refused = {
        config.several_rows: config.several_rows,
        "`turn_advantages`": config.turn_advantages,
        "`rollout.workers`": config.rollout.workers > 1,
        "`load`": trainer.load,
        "`max_tokens_per_gpu`": trainer.max_tokens_per_gpu,
        "`max_logprob_difference`": trainer.max_logprob_difference != MAX_LOGPROB_DIFFERENCE,
        "an estimator but grpo": trainer.advantage_estimator not in (None, "grpo"),
        "WORLD_SIZE above 1": int(os.environ.get("WORLD_SIZE", "1")) > 1,
        **{word: re.fullmatch(REFUSED, field_of(word)) for word in (*trainer.own_flags, *extra)},
    }
    if wrong := [what for what, is_set in refused.items() if is_set]:
        raise ConfigError(f"trl does not take {', '.join(wrong)}. Leave it out, or use `orl train local`")
    return config


def field_of(word: str) -> str:
    """Return the field of GRPOConfig that a flag names."""
    return word.lstrip("-").partition("=")[0].replace("-", "_")


def reward(*, reward: list[float | None], **_: object) -> list[float | None]:
    """Return the rewards of rollouts, None for those that failed: TRL leaves these out."""
    return reward
