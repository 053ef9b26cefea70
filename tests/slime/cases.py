"""Cases of slime's contract for an adapter, and their results with ours: one table, two hosts.

The cases are played against a trainer's own rollout code (`test_real_contract.py`) and, those that need nothing else of
it, against a miniature of it (`test_miniature_contract.py`). Every case is two groups of two: in each, the scripted
model wins once and gives up once, if nothing goes wrong.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

import pytest
from orl_core.trajectory import StopReason, Trajectory
from orl_testing import Fault, FaultKind

WON, LOST = 0.7071, -0.7071


@dataclass(frozen=True, kw_only=True)
class Case:
    """A case, and its expected result. The expected columns are sorted, a place for each sample."""

    name: str
    args: dict[str, Any] = field(default_factory=dict)  # of slime
    config: dict[str, Any] = field(default_factory=dict)  # of orl
    environment: dict[str, Any] = field(default_factory=dict)  # of its only environment
    faults: tuple[Fault, ...] = ()  # of the engine
    thinks: bool = False  # whether the model says its thoughts
    statuses: str = "completed completed truncated truncated"
    rewards: tuple[float, ...] = (0.0, 0.0, 1.0, 1.0)
    advantages: tuple[float, ...] = (LOST, LOST, WON, WON)
    trains: int = 4
    lists: bool = False  # whether every call returns a list
    raises: str = ""  # a ConfigError that names it, and none of the above
    alone: bool = True  # whether it can be shown without slime


_NONE = {"statuses": "failed failed failed failed", "rewards": (0.0,) * 4, "advantages": (0.0,) * 4, "trains": 0}
_ONE_FAILED = {"advantages": (LOST, 0.0, 0.0, WON), "trains": 3}
_ANOTHER_WON = {"statuses": "completed completed failed truncated", **_ONE_FAILED}
_STRIPPED = {"config": {"thinking": "strip"}, "lists": True}
_REFUSED = Fault(kind=FaultKind.STATUS, status=400, message="no")

CASES = (
    Case(name="1 two turns become training data"),
    Case(name="3 the environment is dead", environment={"base_url": "http://127.0.0.1:9"}, **_NONE),
    Case(name="3 a bug of ours", **_ANOTHER_WON),
    Case(
        name="4 one rollout fails",
        faults=(Fault(kind=FaultKind.STATUS, status=400, message="no", at=0),),
        **_ANOTHER_WON,
    ),
    Case(
        name="4b the engine returns no logprobs",
        faults=(Fault(kind=FaultKind.MISSING_LOGPROBS, at=0),),
        statuses="completed failed truncated truncated",
        rewards=(0.0, 0.0, 0.0, 1.0),
        **_ONE_FAILED,
    ),
    Case(name="5 the environment pays nothing", environment={"nonterminal_reward": None}),
    Case(
        name="6 a rollout becomes several samples",
        thinks=True,
        statuses="completed completed completed completed truncated truncated",
        rewards=(0.0, 0.0, 1.0, 1.0, 1.0, 1.0),
        advantages=(LOST, LOST, WON, WON, WON, WON),
        trains=6,
        **_STRIPPED,
    ),
    Case(name="6c lists and samples are never mixed", **_STRIPPED),
    Case(
        name="6d lists cannot be kept for later",
        args={"partial_rollout": True},
        config={"thinking": "strip"},
        raises="partial-rollout",
    ),
    Case(name="7 the engine aborts, and the host does not", faults=(Fault(kind=FaultKind.ABORT, at=0),)),
    Case(
        name="9 the reward model is asked for whole groups",
        args={"group_rm": True, "custom_rm_path": "orl_slime.hooks.reward"},
        alone=False,
    ),
    Case(name="11 the engine refuses", faults=(_REFUSED,), **_NONE),
    Case(name="12 metadata is a string", args={"metadata_key": "prompt"}, raises="its metadata is no task"),
    Case(name="13 a column of tools is looked for", args={"tool_key": "tools"}),
    Case(
        name="14 the reward function hangs on a rollout",
        config={"reward": f"{__name__}:hangs_once", "rollout": {"max_nudges": 1, "reward_timeout": 0.5}},
        statuses="completed failed truncated truncated",
        rewards=(0.0, 0.0, 0.0, 1.0),
        **_ONE_FAILED,
    ),
)


async def hangs_once(trajectory: Trajectory) -> float:
    """Reward who won, but never who won the first task."""
    won = trajectory.stop_reason is StopReason.FINISHED
    if won and trajectory.job.task.index == 0:
        await asyncio.Event().wait()
    return float(won)


def check(case: Case, groups: list[list[Any]], data: dict[str, Any], requests: list[Any]) -> None:
    """Hold what was played, and what the trainer gets of it, against the table."""
    calls = [call for group in groups for call in group]
    assert {isinstance(call, list) for call in calls} == {case.lists}
    samples = [sample for call in calls for sample in (call if case.lists else [call])]
    assert " ".join(sorted(sample.status.value for sample in samples)) == case.statuses
    assert sorted(sample.reward for sample in samples) == list(case.rewards)
    assert data["raw_reward"] == [sample.reward for sample in samples]
    assert sorted(data["rewards"]) == pytest.approx(case.advantages, abs=1e-3)
    assert sum(any(mask) for mask in data["loss_masks"]) == case.trains
    for sample, mask, advantage in zip(samples, data["loss_masks"], data["rewards"], strict=True):
        assert len(mask) == len(sample.rollout_log_probs) == sample.response_length > 0
        assert len(sample.tokens) > sample.response_length
        assert not any(p for p, bit in zip(sample.rollout_log_probs, mask, strict=True) if not bit and any(mask))
        assert any(mask) or advantage == 0.0
        shown = [request.body["input_ids"] for request in requests if key_of(request) == route_of(sample)]
        if any(mask):
            assert any(sample.tokens[: len(ids)] == ids for ids in shown)


def check_continued(sample: Any, requests: list[Any], *, goes_on: bool) -> None:
    """Hold a sample, whose first request the engine cut after three ids, against what the engine was asked."""
    shown = [
        request.body["input_ids"]
        for request in requests
        if sample.tokens[: len(request.body["input_ids"])] == request.body["input_ids"]
    ]
    assert ("default" in sample.weight_versions) == goes_on
    assert "1" in sample.weight_versions
    prompt = len(sample.tokens) - sample.response_length
    lengths = sorted({len(ids) for ids in shown})
    assert lengths[:2] == [prompt, prompt + 3] if goes_on else prompt + 3 not in lengths
    assert sample.loss_mask[:3] == [1, 1, 1]
    assert all(one < 0.0 for one in sample.rollout_log_probs[:3])


def key_of(request: Any) -> str:
    """The routing key of a request (case 1b): one for each rollout."""
    return request.headers["X-SMG-Routing-Key"]


def route_of(sample: Any) -> str:
    """The key that the trainer gave a rollout: slime's and miles' names for it differ."""
    return getattr(sample, "session_id", None) or sample.routing_key
