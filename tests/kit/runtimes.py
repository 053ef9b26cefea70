"""A runtime for tests: no share of errors ends its run, unless a test gives another circuit breaker."""

from __future__ import annotations

from typing import Any

from orl_core.config import RunConfig
from orl_rollout.runtime.circuit_breaker import CircuitBreaker
from orl_rollout.runtime.runtime import Runtime

from tests.kit.tokenizers import renderer_of


def runtime_of(config: RunConfig, client: Any, **settings: Any) -> Runtime:
    """Return a runtime with the small Qwen3 renderer. `settings` are those of Runtime."""
    settings = {"renderer": renderer_of(), "breaker": CircuitBreaker(max_error_rate=1.0, group_size=1), **settings}
    return Runtime(config, client=client, **settings)
