"""Group rewards: the environment itself compares the rollouts of one task (`score_group`).

A rollout never waits for its siblings: whole groups are scored together, on fresh sessions, under one deadline. It does
not count the wait for a server that is away or busy; scoring changes nothing there, so it begins again. A group that
cannot be scored keeps its rewards. The module knows no trainer; `orl_core.reward.group_rewards` makes one number
of scores and rewards.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct, structs
from orl_core.config import GroupRewardConfig, RolloutConfig
from orl_core.errors import OrlError, SessionError
from orl_core.messages import Message
from orl_core.reward import group_rewards
from orl_core.task import Task
from orl_core.trajectory import Trajectory

from orl_rollout.edge.retry import Waiting, backoff, retried
from orl_rollout.episodes.conversation import conversation
from orl_rollout.logs import Sparing, logger_of
from orl_rollout.loop.clock import within
from orl_rollout.loop.loop import CLOSE_SECONDS
from orl_rollout.loop.session import Opening, Unserved
from orl_rollout.results.outcome import Outcome
from orl_rollout.runtime.admission import FIRST_PAUSE, LONGEST_PAUSE, LONGEST_WISH

warnings = Sparing(logger_of("orl"))


class Judge(Protocol):
    """A session that compares: `orl_rollout.openreward.OpenRewardSession`, or a fake in a few lines."""

    async def open(self, task: Task) -> Opening:
        """Open as `Session.open` does."""
        ...

    async def score_group(self, candidates: Sequence[Sequence[Message]]) -> tuple[float, ...]:
        """Return one finite score for each conversation; raises SessionError."""
        ...

    async def close(self) -> None:
        """Close as `Session.close` does."""
        ...


class Judges(Protocol):
    """The source of judges: `orl_rollout.openreward.OpenRewardClient`."""

    def session(self, task: Task) -> Judge:
        """Make a judge of `task`, not yet open."""
        ...


class Group(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The conversations of one task that are to be compared."""

    task: Task
    candidates: tuple[tuple[Message, ...], ...]


def candidate(trajectory: Trajectory) -> tuple[Message, ...]:
    """Return the messages of an episode for the judge, without nudges and an agent's words."""
    return tuple(one.message for one in conversation(trajectory) if one.turn is None or one.action or one.result)


async def score_groups(
    groups: Sequence[Group], judges: Judges, *, seconds: float, patience: float = RolloutConfig().patience
) -> list[tuple[float, ...] | None]:
    """Return the scores of each group, aligned with its candidates; None if it could not be scored in `seconds`.

    `patience` is how long a group waits for a server that is away or busy, in addition to `seconds`.
    """
    ends = time.monotonic() + seconds
    async with asyncio.TaskGroup() as tasks:
        scoring = [tasks.create_task(_score(group, judges, ends, patience)) for group in groups]
    return [task.result() for task in scoring]


async def _score(group: Group, judges: Judges, ends: float, patience: float) -> tuple[float, ...] | None:
    waited = 0.0

    def postpone(seconds: float) -> None:
        nonlocal waited
        waited += seconds

    pauses = backoff(FIRST_PAUSE, LONGEST_PAUSE)
    waiting = Waiting(pauses=pauses, longest_wish=LONGEST_WISH, patience=lambda: patience, postpone=postpone)
    try:
        return await retried(lambda: _ask(group, judges, ends + waited), Unserved, waiting=waiting)
    except OrlError as fault:
        warnings.warn(f"{fault}; its rollouts keep their own rewards", group.task.env_name)
        return None


async def _ask(group: Group, judges: Judges, ends: float) -> tuple[float, ...]:
    """Return the scores of `group` by a judge of its own, until the moment `ends`."""
    what = f"scoring the group of {group.task.key}"
    async with within(CLOSE_SECONDS + max(0.0, ends - time.monotonic()), SessionError, what):
        judge = judges.session(group.task)
        try:
            async with within(max(0.0, ends - time.monotonic()), SessionError, what):
                await judge.open(group.task)
                return await judge.score_group(group.candidates)
        finally:
            await judge.close()


async def compare(
    outcomes: Sequence[Outcome],
    judges: Judges,
    config: GroupRewardConfig,
    *,
    patience: float = RolloutConfig().patience,
) -> tuple[list[Outcome], dict[str, float]]:
    """Return `outcomes` with the rewards of whole groups (equal tasks), in order, and metrics. `success` stays.

    `patience` is that of `score_groups`. Rollouts that do not train are not shown to the judge and keep their rewards.
    """
    members: dict[str, list[int]] = {}
    for place, outcome in enumerate(outcomes):
        if outcome.trajectory.trainable:
            members.setdefault(outcome.trajectory.job.task.key, []).append(place)
    groups = [
        Group(
            task=outcomes[places[0]].trajectory.job.task,
            candidates=tuple(candidate(outcomes[place].trajectory) for place in places),
        )
        for places in members.values()
    ]
    scored = await score_groups(groups, judges, seconds=config.timeout, patience=patience)
    scores: list[float | None] = [None] * len(outcomes)
    for places, group in zip(members.values(), scored, strict=True):
        for place, score in zip(places, group or (), strict=False):
            scores[place] = score
    rewards = group_rewards([outcome.reward for outcome in outcomes], scores, config)
    paid: list[Outcome] = []
    for outcome, reward in zip(outcomes, rewards, strict=True):
        data = tuple(structs.replace(datum, reward=reward) for datum in outcome.datums)
        paid.append(structs.replace(outcome, reward=reward, datums=data))
    return paid, metrics_of_groups(scored)


def metrics_of_groups(scored: Sequence[tuple[float, ...] | None]) -> dict[str, float]:
    """Return the number of groups to be scored, and the share of them that could not be."""
    failed = sum(scores is None for scores in scored)
    return {"group_reward/groups": float(len(scored)), "group_reward/failed": failed / len(scored) if scored else 0.0}
