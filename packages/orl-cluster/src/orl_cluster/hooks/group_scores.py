"""Group rewards in a trainer: conversations wait in the samples' metadata until `post_process` sees whole groups.

`generate` never waits for siblings, and trainers call the post-processing of rewards, synchronous, on a thread whose
loop may be running; so the scoring has a thread and a loop of its own, and a client that lives as long as it does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any, cast

import msgspec
from orl_core.config import RunConfig
from orl_core.errors import OrlError, boundary
from orl_core.messages import Message
from orl_core.reward import group_rewards
from orl_core.trajectory import Trajectory
from orl_rollout.edge.interrupt import on_thread
from orl_rollout.logs import logger_of
from orl_rollout.openreward import OpenRewardClient
from orl_rollout.runtime.group_scores import Group, candidate, metrics_of_groups, score_groups

from orl_cluster.hooks.rows import task_of
from orl_cluster.hooks.worker import config_of

logger = logger_of("orl")

OFFERED = "orl_conversation"  # in a sample's metadata: the conversation for the judge
SCORED = "orl_group_score"  # and its score: a number, or None if the group could not be scored


def store_conversation(sample: Any, trajectory: Trajectory | None) -> None:
    """Leave the conversation of `trajectory` with its sample, or take an earlier one away."""
    sample.metadata.pop(OFFERED, None)
    sample.metadata.pop(SCORED, None)
    if trajectory is not None:
        sample.metadata[OFFERED] = msgspec.to_builtins(candidate(trajectory))


def compare(args: Any, samples: Sequence[Any], rewards: Sequence[float]) -> list[float]:
    """Return the rewards of N samples, blended with the environment's scores where whole groups were offered.

    Conversations leave the metadata; scores stay in it. Total: a sample that cannot be scored keeps its reward.
    """
    if not any(OFFERED in sample.metadata for sample in samples):
        return list(rewards)
    config = config_of(args)
    groups: dict[Any, list[Any]] = {}
    for sample in samples:
        if OFFERED in sample.metadata:
            groups.setdefault(sample.group_index, []).append(sample)
    try:
        with boundary(OrlError, "scoring groups"):
            per_group = on_thread(lambda: asyncio.run(_scores(config, list(groups.values())))).result()
    except OrlError as fault:
        logger.warning("%s; all rollouts keep their own rewards", fault)
        per_group = [None] * len(groups)
    logger.info("%s", metrics_of_groups(per_group))
    scores: dict[Any, float | None] = {}
    for members, group in zip(groups.values(), per_group, strict=True):
        for member, sample in enumerate(members):
            store_conversation(sample, None)
            sample.metadata[SCORED] = scores[rollout_of(sample)] = group[member] if group else None
    return group_rewards(rewards, [scores.get(rollout_of(sample)) for sample in samples], config.group_reward)


def flat(samples: Iterable[Any]) -> list[Any]:
    """Return the samples of calls that returned a sample each, or a list of them."""
    lists = [cast("list[Any]", one) if isinstance(one, list) else [one] for one in samples]
    return [sample for members in lists for sample in members]


def rollout_of(sample: Any) -> Any:
    """Return the identity that samples of one rollout share, and no others.

    `rollout_id` may be write-only, as in slime 0.3.0. Then it is the index, which copies of a sample share, too.
    """
    named = getattr(sample, "rollout_id", None)
    return sample.index if named is None else named


async def _scores(config: RunConfig, groups: Sequence[Sequence[Any]]) -> list[tuple[float, ...] | None]:
    questions = [
        Group(
            task=task_of(members[0]),
            candidates=tuple(msgspec.convert(member.metadata[OFFERED], tuple[Message, ...]) for member in members),
        )
        for members in groups
    ]
    async with OpenRewardClient(config) as client:
        patience = config.rollout.patience
        return await score_groups(questions, client, seconds=config.group_reward.timeout, patience=patience)
