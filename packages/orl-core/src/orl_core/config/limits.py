"""Limits of a run, computed from its configuration. Adapters, `orl rollout` and `orl doctor` ask this module alone."""

from __future__ import annotations

from orl_core.config.schema import RunConfig
from orl_core.limits import CONTEXT_TOKENS, Budgets, Limits


def limits_of(config: RunConfig, env_name: str, *, context_tokens: int | None = None) -> Limits:
    """Return the limits of a rollout in `env_name`. `context_tokens` is the trainer's own limit, if it states one."""
    environment = config.environment(env_name)
    context = context_tokens or context_tokens_of(config)
    budgets = {name: getattr(config.rollout, name) for name in Budgets.__struct_fields__}
    budgets["call_timeout"] = environment.call_timeout or config.rollout.call_timeout
    return Limits(
        **budgets,
        max_turns=environment.max_turns,
        context_tokens=context,
        rollout_tokens=config.rollout.rollout_tokens or context,
        parallel_calls=environment.parallel_calls,
        strip_reasoning=config.thinking == "strip",
    )


def context_tokens_of(config: RunConfig) -> int:
    """Return the most ids of prompt and response together, in training, evaluation and `orl rollout`."""
    return config.rollout.context_tokens or CONTEXT_TOKENS
