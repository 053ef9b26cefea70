"""Outcomes: the user's own reward function is loaded or refused by name, and total once it is asked."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from orl_core.config import EnvironmentConfig, decode_config
from orl_core.errors import ConfigError
from orl_core.reward import reduce_reward
from orl_core.trajectory import StopReason, Trajectory
from orl_rollout.results.outcome import RewardFunction, load_reward, outcome_of

from tests.kit.secrets import NO_SECRETS
from tests.kit.strategies import trajectories
from tests.kit.trajectories import environment, played

HERE = "tests.rollout.results.test_outcome"


def turns(trajectory: Trajectory) -> float:
    return len(trajectory.turns)


def two(trajectory: Trajectory, other: Trajectory) -> float:
    return len(trajectory.turns) + len(other.turns)


def settled(trajectory: Trajectory, environment: EnvironmentConfig) -> float:
    assert environment.secrets == {}
    return environment.success_reward


def named(reward: str, mode: str = "replace") -> RewardFunction:
    """Return the function that a configuration names."""
    loaded = load_reward(decode_config({"environments": {"A/B": {}}, "reward": reward, "reward_mode": mode}, "test"))
    assert loaded is not None
    return loaded


def of(function: Callable[..., object]) -> RewardFunction:
    return RewardFunction(name="m:f", function=function)


def test_reward_function_replaces_reduction_and_is_clamped():
    function = named(f"{HERE}:turns")
    assert function.function is turns
    outcome = outcome_of(
        played([5.0, 5.0]), environment(success_reward=2.0, nonterminal_reward=-9.0), NO_SECRETS, function
    )
    assert (outcome.reward, outcome.success) == (2.0, True)
    assert {datum.reward for datum in outcome.datums} <= {2.0}
    assert outcome_of(played([5.0, 5.0]), environment(max_reward=0.5), NO_SECRETS, function).reward == 0.5


@pytest.mark.parametrize(("mode", "reward"), [("replace", 2.0), ("add", 2.75), ("scale", 1.5)])
def test_function_and_environment_reward_are_combined(mode: str, reward: float):
    function = named(f"{HERE}:turns", mode)
    assert outcome_of(played([0.5, 0.25]), environment(), NO_SECRETS, function).reward == reward
    assert outcome_of(played([0.5, 0.25]), environment(max_reward=0.7), NO_SECRETS, function).reward == 0.7
    failed = structs.replace(played([0.5]), stop_reason=StopReason.ERROR)
    assert outcome_of(failed, environment(), NO_SECRETS, function).reward == 0.0


def test_function_gets_settings_without_secrets():
    config = environment(success_reward=3.0, secrets={"token": "value-of-token"})
    assert outcome_of(played([0.5]), config, NO_SECRETS, named(f"{HERE}:settled")).reward == 3.0


def test_function_is_found_in_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "my_own_rewards.py").write_text("def score(trajectory):\n    return 4\n", encoding="utf-8")
    monkeypatch.setattr(sys, "path", list(sys.path))
    with pytest.raises(ConfigError, match="my_own_rewards"):
        named("my_own_rewards:score")
    monkeypatch.chdir(tmp_path)
    assert outcome_of(played([1.0]), environment(), NO_SECRETS, named("my_own_rewards:score")).reward == 4.0
    monkeypatch.delitem(sys.modules, "my_own_rewards")


@pytest.mark.parametrize(("short", "success"), [(0.0, True), (5e-10, True), (1e-6, False)])
def test_reward_of_full_marks_is_a_success(short: float, success: bool):
    function = of(lambda _: 0.7 + 0.2 + 0.1 - short)
    assert outcome_of(played([None]), environment(), NO_SECRETS, function).success is success


def test_episode_that_never_ended_may_succeed():
    unended = played([0.25] * 20, StopReason.MAX_TURNS)
    assert outcome_of(unended, environment(), NO_SECRETS).success
    assert not outcome_of(unended, environment(nonterminal_reward=-5.0), NO_SECRETS).success


@pytest.mark.parametrize("reason", StopReason)
def test_what_ended_in_error_is_no_success_whatever_the_bar(reason: StopReason):
    outcome = outcome_of(
        structs.replace(played([5.0]), stop_reason=reason), environment(success_reward=-1.0), NO_SECRETS
    )
    assert outcome.success is (reason is not StopReason.ERROR)
    assert outcome.reward == (0.0 if reason is StopReason.ERROR else 5.0)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("no_such_module:score", "install it"),
        (f"{HERE}:no_such_function", "AttributeError"),
        (f"{HERE}:HERE", "must be a function"),
        (f"{HERE}:two", "missing a required argument"),
    ],
)
def test_unusable_reward_function_is_refused_by_name(name: str, why: str):
    module, _, attribute = name.partition(":")
    with pytest.raises(ConfigError) as refusal:
        named(name)
    assert all(said in str(refusal.value) for said in (f"`{module}`", f"`{attribute}`", why))


def test_module_that_a_function_needs_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    Path("scores.py").write_text("import not_installed_here", "utf-8")
    with pytest.raises(ConfigError, match="`not_installed_here`"):
        named("scores:score")


@given(
    given_back=st.none() | st.text() | st.floats() | st.integers() | st.fractions() | st.sampled_from([[1.0], 10**400])
)
def test_outcome_of_any_return_value_is_finite_or_an_error(given_back: object):
    outcome = outcome_of(played([1.0]), environment(), NO_SECRETS, of(lambda _: given_back))
    finite = isinstance(given_back, int | float | Fraction) and -1e18 < given_back < 1e18
    assert math.isfinite(outcome.reward)
    if finite:
        assert outcome.reward == float(given_back)  # type: ignore[arg-type]
    if outcome.trajectory.stop_reason is StopReason.ERROR:
        assert outcome.trajectory.error.startswith("the reward function `m:f`: ")
        assert not finite
        assert not outcome.success
        assert outcome.reward == 0.0


@given(trajectory=trajectories)
def test_error_of_raising_function_does_not_train(trajectory: Trajectory):
    def broken(_: Trajectory) -> float:
        raise KeyError("answer")

    outcome = outcome_of(trajectory, environment(), NO_SECRETS, of(broken))
    if trajectory.stop_reason is StopReason.ABORTED:
        cleared = NO_SECRETS.cleared(trajectory)
        assert (outcome.trajectory, outcome.reward) == (cleared, reduce_reward(trajectory, environment()))
        return
    assert outcome.trajectory.stop_reason is StopReason.ERROR
    assert (outcome.reward, outcome.success) == (0.0, False)
    assert not any(any(datum.loss_mask) or datum.trainable for datum in outcome.datums)
    if trajectory.stop_reason is not StopReason.ERROR:
        assert outcome.trajectory.error == "the reward function `m:f`: KeyError: 'answer'"
