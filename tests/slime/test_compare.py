"""Group rewards in slime's post-processing: whole groups are compared by a real environment, on a loop of their own."""

from __future__ import annotations

import asyncio
from argparse import Namespace
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from orl_cluster.hooks.group_scores import OFFERED, SCORED, store_conversation
from orl_cluster.hooks.samples import split
from orl_rollout.results.outcome import Outcome
from orl_slime.hooks import post_process
from orl_testing.environments import Served, serve

from tests.kit.trajectories import ended
from tests.slime.miniature import Sample, arguments


@pytest.fixture(scope="module")
def gallery() -> Iterator[Served]:
    with serve() as served:
        yield served


def args(url: str, mode: str = "only", **changes: Any) -> Namespace:
    environments = {"gallery/Compared": {"base_url": url}}
    comparison = {"group_reward": {"mode": mode, "timeout": 5}, "rollout": {"patience": 1.0}}
    return arguments(orl_config={"environments": environments, **comparison}, **changes)


def played(outcome: Outcome, index: int, group: int) -> list[Sample]:
    """Return what `generate` makes of an outcome whose reasoning is stripped, where groups are compared."""
    task = msgspec.to_builtins(outcome.trajectory.job.task)
    sample = Sample(index=index, group_index=group, metadata=task | {"start_rollout_id": 3})
    store_conversation(sample, outcome.trajectory if outcome.trajectory.trainable else None)
    return split(sample, outcome, text_of=str)


def test_whole_groups_are_compared_and_siblings_share_the_score(gallery: Served):
    outcomes = [ended("a"), ended("bbb"), ended("asleep", number=2), ended("at all", number=2)]
    samples = [sample for index, outcome in enumerate(outcomes) for sample in played(outcome, index, index // 2)]
    sibling = Sample(index=1, rollout_id=1, group_index=0, reward=1.0, loss_mask=[1])
    samples.insert(2, sibling)
    raw, advantages = post_process(args(gallery.url), samples)
    assert raw == [1.0, 3.0, 3.0, 1.0, 1.0]
    assert advantages == pytest.approx([-0.7071, 0.7071, 0.7071, 0.0, 0.0], abs=1e-3)
    assert not any(OFFERED in sample.metadata for sample in samples)
    assert [sample.metadata.get(SCORED) for sample in samples] == [1.0, 3.0, None, None, None]
    raw, _ = post_process(args(gallery.url), samples)
    assert raw == [1.0] * 5, "a batch is compared once"


async def test_it_works_beside_a_running_loop(gallery: Served):
    samples = [*played(ended("a"), 0, 0), *played(ended("bbb"), 1, 0)]
    raw, _ = post_process(args(gallery.url, "blend"), samples)
    assert raw == [2.0, 4.0]
    assert asyncio.get_running_loop().is_running()


@pytest.mark.slow
def test_an_environment_out_of_reach_leaves_the_rewards():
    samples = played(ended("a"), 0, 0)
    raw, _ = post_process(args("http://127.0.0.1:9", rewards_normalization=False), samples)
    assert raw == [1.0]
