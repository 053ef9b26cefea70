"""One function computes the limits of a run from its configuration."""

from __future__ import annotations

from typing import Any

import pytest
from orl_core.config import RunConfig, decode_config
from orl_core.config.limits import context_tokens_of, limits_of
from orl_core.errors import ConfigError


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


def test_older_names_of_budgets_are_read() -> None:
    config = config_of(trainer={"max_response_len": 7, "max_context_len": 9}, rollout={"context_tokens": None})
    assert (config.rollout.turn_tokens, config.rollout.context_tokens) == (7, 9)
    unset = config_of(trainer={"max_response_len": None}, rollout={"turn_tokens": 5})
    assert unset.rollout.turn_tokens == 5


def test_one_budget_with_two_values_is_refused() -> None:
    config_of(trainer={"max_response_len": 7}, rollout={"turn_tokens": 7})
    with pytest.raises(ConfigError, match=r"trainer\.max_response_len.*16384.*rollout\.turn_tokens.*4096"):
        config_of(trainer={"max_response_len": 16384}, rollout={"turn_tokens": 4096})


@pytest.mark.parametrize("value", ["7", [], 0])
def test_an_older_name_without_a_budget_is_refused(value: object) -> None:
    with pytest.raises(ConfigError, match=r"max_response_len|turn_tokens"):
        config_of(trainer={"max_response_len": value})
