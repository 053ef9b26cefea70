"""Limits of a run, computed from its configuration. Adapters, `orl rollout` and `orl doctor` ask this module alone."""

from __future__ import annotations

from orl_core.config.schema import RunConfig
from orl_core.limits import CONTEXT_TOKENS, Budgets, Limits

TOKENS_PER_GPU = 8192
CLUSTER_CONTEXT = 8192  # as in the cookbook, for each GPU that shares a sequence
CONTEXT_PARALLEL = "--context-parallel-size"


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
    if config.rollout.context_tokens or config.trainer.backend == "trl":
        return config.rollout.context_tokens or CONTEXT_TOKENS
    flags = config.trainer.own_flags.items()
    given = {f"--{name.removeprefix('--').replace('_', '-')}": value for name, value in flags}
    parallel = str(given.get(CONTEXT_PARALLEL, "")).removesuffix(".0")
    return CLUSTER_CONTEXT * (int(parallel) if parallel.isdecimal() else 1)
