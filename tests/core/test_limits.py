"""One function computes the limits of a run from its configuration."""

from __future__ import annotations

from typing import Any

import pytest
from orl_core.config import RunConfig, decode_config
from orl_core.config.limits import context_tokens_of, limits_of


def config_of(**more: Any) -> RunConfig:
    return decode_config({"environments": {"A/B": {}}, **more}, "test")


def test_limits_carry_reasoning_and_masks() -> None:
    config = config_of(thinking="strip", rollout={"train_on": {"failed_turns": False}})
    limits = limits_of(config, "A/B")
    assert limits.strip_reasoning
    assert limits.train_on == config.rollout.train_on
    assert not limits_of(config_of(thinking="keep"), "A/B").strip_reasoning


def test_the_trainers_context_wins_and_holds_the_rollout() -> None:
    config = config_of(rollout={"context_tokens": 1000})
    given, own = limits_of(config, "A/B", context_tokens=700), limits_of(config, "A/B")
    assert (given.context_tokens, given.rollout_tokens) == (700, 700)
    assert (own.context_tokens, own.rollout_tokens) == (1000, 1000)
    config = config_of(rollout={"context_tokens": 1000, "rollout_tokens": 300})
    assert limits_of(config, "A/B", context_tokens=700).rollout_tokens == 300


@pytest.mark.parametrize(
    ("rollout", "expected"),
    [
        ({}, 32768),
        ({"context_tokens": 65536}, 65536),
    ],
)
def test_context_of_a_run(rollout: dict[str, Any], expected: int) -> None:
    assert context_tokens_of(config_of(rollout=rollout)) == expected
