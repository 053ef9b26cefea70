"""The limit of the context on a cluster, if the configuration has none. Launcher and hooks read it here."""

from __future__ import annotations

from msgspec import structs
from orl_core.config import RunConfig

CONTEXT = 8192  # as in the cookbook, for each GPU that shares a sequence


def with_context(config: RunConfig, parallel: int) -> RunConfig:
    """Return `config` with its limit, else with the default for sequences that `parallel` GPUs share."""
    context = config.rollout.context_tokens or CONTEXT * parallel
    return structs.replace(config, rollout=structs.replace(config.rollout, context_tokens=context))
