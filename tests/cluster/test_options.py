"""Options of trainers on a cluster: the limit of the context, and checks between keys."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
from orl_cluster.launch.options import resolve
from orl_core.config import RunConfig, decode_config
from orl_core.errors import ConfigError


def config_of(rollout: dict[str, Any], **trainer: Any) -> RunConfig:
    tree = {"environments": {"A/B": {}}, "rollout": rollout, "trainer": {"backend": "slime", **trainer}}
    return decode_config(tree, "test")


@pytest.mark.parametrize(
    ("trainer", "extra", "rollout", "expected"),
    [
        ({}, (), {}, 8192),
        ({}, (), {"context_tokens": 100}, 100),
        ({"max_tokens_per_gpu": 65536}, (), {}, 8192),
        ({"flags": {"--context-parallel-size": 2.0}}, (), {}, 16384),
        ({"flags": {"context_parallel_size": "8"}}, (), {}, 65536),
        ({}, ("--context-parallel-size", "4"), {}, 32768),
    ],
)
def test_context_of_a_run(
    trainer: dict[str, Any], extra: tuple[str, ...], rollout: dict[str, Any], expected: int
) -> None:
    assert resolve("slime", config_of(rollout, **trainer), extra).rollout.context_tokens == expected


@pytest.mark.parametrize(
    ("rollout", "seconds", "refused"),
    [
        ({}, 3600, False),
        ({}, 1799, True),
        ({}, 1800, False),
        ({"rollout_timeout": 3000}, 3600, True),
        ({"patience": 2500}, 3600, True),
    ],
)
def test_stall_timeout_outlasts_a_silent_rollout(rollout: dict[str, float], seconds: float, *, refused: bool) -> None:
    config = config_of(rollout, cluster={"stall_timeout": seconds})
    with pytest.raises(ConfigError, match="stall_timeout") if refused else nullcontext():
        resolve("slime", config, ())


def test_section_of_the_checkout_is_checked() -> None:
    with pytest.raises(ConfigError, match=r"\$\.trainer\.slime"):
        resolve("slime", config_of({}, slime={"pth": "x"}), ())
