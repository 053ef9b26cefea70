"""The metrics of a batch: rates within bounds, errors left out if they would count as the policy's."""

from __future__ import annotations

from itertools import combinations
from math import nan

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from orl_core.messages import Action, FailureKind, ToolResult
from orl_core.trajectory import Generation, StopDetail, StopReason, Trajectory, Turn
from orl_rollout.results.metrics import (
    RolloutStats,
    evaluation_metrics,
    mean_pass_at_k,
    metrics_of,
    pass_at_k,
    stats_of,
    training_metrics,
    wilson,
)
from orl_rollout.results.outcome import outcome_of

from tests.kit.secrets import NO_SECRETS
from tests.kit.strategies import trajectories
from tests.kit.trajectories import environment, played

ENDINGS = tuple(f"stop/{ending.value}" for ending in (*StopReason, *StopDetail))
RATES = ("success", "valid_calls", "failed_calls", "cache_hits", *ENDINGS)


def measured(trajectory: Trajectory) -> RolloutStats:
    return stats_of(outcome_of(trajectory, environment(), NO_SECRETS))


@given(batch=st.lists(trajectories, min_size=1, max_size=4))
def test_every_rate_is_a_share_and_a_measure_survives_json(batch: list[Trajectory]):
    measures = [measured(trajectory) for trajectory in batch]
    assert [msgspec.json.decode(msgspec.json.encode(one), type=RolloutStats) for one in measures] == measures
    metrics = metrics_of(measures)
    for name in {one.environment for one in measures}:
        assert metrics[f"{name}/rollouts"] == sum(one.environment == name for one in measures)
        assert abs(sum(metrics[f"{name}/{ending}"] for ending in ENDINGS) - 1) < 1e-9
        assert all(metrics.get(f"{name}/{rate}", 0.0) >= 0 for rate in RATES)
        assert all(metrics.get(f"{name}/{rate}", 0.0) <= 1 for rate in RATES if rate != "cache_hits")


@pytest.mark.parametrize("detail", StopDetail)
def test_endings_of_the_model_are_counted_apart(detail: StopDetail):
    early = structs.replace(played([0.0], detail.reason), stop_detail=detail)
    metrics = metrics_of([measured(early), measured(played([0.0], detail.reason))])
    (name,) = {key.partition("/stop/")[0] for key in metrics if "/stop/" in key}
    assert metrics[f"{name}/stop/{detail.value}"] == metrics[f"{name}/stop/{detail.reason.value}"] == 0.5


def test_cache_hits_are_a_share_of_all_that_was_sent_in_prompts():
    first = Turn(
        observation=(1, 2, 3),
        generations=(Generation(token_ids=(4, 5), logprobs=(-1.0, -1.0), finish_reason="stop", cached_tokens=0),),
        action=Action(),
        results=(ToolResult(name="a"), ToolResult(name="b", failure=FailureKind.UNKNOWN_TOOL)),
    )
    second = Turn(
        observation=(6,),
        generations=(Generation(token_ids=(7,), logprobs=(-1.0,), finish_reason="stop", cached_tokens=4),),
        action=Action(),
        results=(ToolResult(name="a", finished=True),),
    )
    trajectory = structs.replace(played([]), turns=(first, second))
    one = measured(trajectory)
    assert (one.prompt_tokens, one.cached_tokens) == (3 + 6, 4)
    assert (one.turns, one.valid_turns, one.calls, one.failures) == (2, 1, 3, {"unknown_tool": 1})
    metrics = metrics_of([one])
    assert metrics["A/B/cache_hits"] == 4 / 9
    failures = {name.rpartition("/")[2]: share for name, share in metrics.items() if "/failures/" in name}
    assert failures == {**dict.fromkeys(FailureKind, 0.0), "unknown_tool": metrics["A/B/failed_calls"]}
    assert metrics["A/B/failed_calls"] == 1 / 3


def test_faults_are_excluded_and_environments_are_totalled():
    won, failed = measured(played([1.0])), measured(played([1.0], StopReason.ERROR))
    elsewhere = structs.replace(won, environment="C/D", reward=0.0, success=False)
    metrics = metrics_of([won, failed, elsewhere])
    assert (metrics["A/B/reward"], metrics["A/B/success"], metrics["A/B/rollouts"]) == (1.0, 1.0, 2.0)
    assert (metrics["C/D/success"], metrics["all/success"], metrics["all/rollouts"]) == (0.0, 0.5, 3.0)
    assert "all/success" not in metrics_of([won, failed])
    assert not {"A/B/reward", "A/B/success", "A/B/turns"} & metrics_of([failed]).keys()


def test_aborted_rollouts_are_no_failures():
    """The host stopped them: nobody judged them, the user's reward function neither."""
    won, aborted = measured(played([1.0])), measured(played([], StopReason.ABORTED))
    metrics = evaluation_metrics([won, aborted])
    assert (metrics["A/B/reward"], metrics["A/B/success"], metrics["A/B/pass@1"]) == (1.0, 1.0, 1.0)
    assert (metrics["A/B/rollouts"], metrics["A/B/judged"], metrics["A/B/stop/aborted"]) == (2.0, 1.0, 0.5)


@pytest.mark.parametrize(
    ("rewards", "stop", "unrewarded"),
    [
        ([None, None], StopReason.FINISHED, 1.0),
        ([None, nan], StopReason.FINISHED, 1.0),
        ([], StopReason.FINISHED, 1.0),
        ([None, 0.0], StopReason.FINISHED, 0.0),
        ([None], StopReason.MAX_TURNS, 0.0),  # the environment has not ended it
        ([None], StopReason.ERROR, 0.0),
    ],
)
def test_finished_without_reward_is_counted(rewards: list[float | None], stop: StopReason, unrewarded: float):
    one = measured(played(rewards, stop))
    assert one.reward == 0.0
    assert metrics_of([one])["A/B/unrewarded"] == unrewarded
    assert metrics_of([one])["A/B/rewards"] == float(0.0 in rewards)


def test_groups_of_equal_rewards_are_counted():
    won, lost = (structs.replace(measured(played([reward])), trained_tokens=5) for reward in (1.0, 0.0))
    broken = structs.replace(measured(played([1.0], StopReason.ERROR)), trained_tokens=5)
    untrained = structs.replace(lost, trained_tokens=0)

    def groups(*members: tuple[str, RolloutStats]) -> tuple[float, float]:
        metrics = training_metrics(structs.replace(stats, task=task) for task, stats in members)
        return metrics["A/B/groups"], metrics["A/B/equal_groups"]

    assert groups(("1", won), ("1", lost), ("2", won), ("2", won)) == (2.0, 0.5)
    assert groups(("1", won), ("1", won), ("1", broken), ("1", untrained)) == (1.0, 1.0)
    assert groups(("1", won), ("2", lost), ("3", broken), ("3", won)) == (0.0, 0.0)
    assert training_metrics([]) == {}
    assert "A/B/groups" not in training_metrics([won, lost], groups=False)


def test_evaluation_has_pass_at_k_by_set_and_in_all():
    won, lost = measured(played([1.0])), measured(played([0.0]))
    broken = measured(played([1.0], StopReason.ERROR))

    def of(stats: RolloutStats, environment: str, split: str, task: str) -> RolloutStats:
        return structs.replace(stats, environment=environment, split=split, task=task)

    metrics = evaluation_metrics(
        [
            of(won, "A/B", "test", "1"),
            of(lost, "A/B", "test", "1"),
            of(lost, "A/B", "hard", "2"),
            of(lost, "A/B", "hard", "2"),
            of(broken, "A/B", "hard", "3"),
            of(won, "C/D", "test", "4"),
            of(won, "C/D", "test", "4"),
        ]
    )
    assert (metrics["A/B/pass@1"], metrics["A/B/pass@2"], metrics["A/B/tasks"]) == (0.25, 0.5, 2.0)
    assert (metrics["A/B/test/pass@2"], metrics["A/B/hard/pass@2"]) == (1.0, 0.0)
    assert (metrics["A/B/hard/rollouts"], metrics["A/B/hard/judged"], metrics["A/B/hard/success"]) == (3.0, 2.0, 0.0)
    assert (metrics["all/pass@1"], metrics["all/tasks"]) == (0.5, 3.0)
    assert "C/D/test/success" not in metrics  # its only split is the environment itself
    assert evaluation_metrics([broken]).keys() >= {"A/B/tasks"}
    assert "A/B/pass@1" not in evaluation_metrics([broken])


@given(st.lists(st.booleans(), min_size=1, max_size=9), st.data())
def test_it_is_the_share_of_choices_that_hold_a_success(outcomes: list[bool], data: st.DataObject) -> None:
    k = data.draw(st.integers(1, len(outcomes)))
    choices = list(combinations(outcomes, k))
    expected = sum(map(any, choices)) / len(choices)
    assert pass_at_k(len(outcomes), sum(outcomes), k) == pytest.approx(expected)


def test_mean_over_tasks_for_doubling_k_all_tasks_have() -> None:
    means = mean_pass_at_k({"a": [True, False, False, False, False], "b": [True] * 6, "c": []})
    assert means == {1: pytest.approx(0.6), 2: pytest.approx(0.7), 4: pytest.approx(0.9), 5: pytest.approx(1.0)}
    assert mean_pass_at_k({}) == {}


@pytest.mark.parametrize(
    ("rate", "n", "low", "high"),
    [(0.5, 10, 0.2366, 0.7634), (0.0, 10, 0.0, 0.2775), (1.0, 20, 0.8389, 1.0), (0.3, 100, 0.2189, 0.3958)],
)
def test_wilson_gives_the_published_values(rate: float, n: int, low: float, high: float):
    assert wilson(rate, n) == pytest.approx((low, high), abs=5e-5)


@given(rate=st.floats(0, 1), n=st.integers(0, 10**6))
def test_wilson_holds_the_rate_within_bounds(rate: float, n: int):
    low, high = wilson(rate, n)
    assert 0 <= low <= rate + 1e-9
    assert rate - 1e-9 <= high <= 1
