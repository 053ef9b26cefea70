"""Replay and evaluation of our miles adapter on a miniature of miles: what does not fit, and what is not asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from orl_cluster.hooks.worker import aclose
from orl_miles.generate import RunEnded
from orl_miles.hooks import post_process

from tests.miles.miniature import Sample
from tests.miles.test_generate import REPLAY, hosting, played
from tests.slime import episode
from tests.slime.miniature import arguments

SAMPLING = {"temperature": 1.0, "max_new_tokens": 200}


async def test_evaluation_requests_no_replay_data(environment: str, checkpoint: Path, tmp_path: Path):
    with hosting(checkpoint, tmp_path, episode.settings(environment), **REPLAY) as (host, server):
        (trained, evaluated), _ = host.groups
        try:
            await host.generate(trained, SAMPLING, False)
            await host.generate(evaluated, SAMPLING, True)
        finally:
            await aclose()
        asked = [request.body.get("return_routed_experts", False) for request in server.requests]
    assert asked == [True, True, False, False]
    assert {trained.status.value, evaluated.status.value} == {"completed", "truncated"}
    assert len(trained.rollout_indexer_topk) == len(trained.tokens) - 1
    assert evaluated.rollout_routed_experts is evaluated.rollout_indexer_topk is None


def test_padding_of_a_batch_is_as_wide_as_its_siblings():
    args = arguments(use_rollout_routing_replay=True, use_rollout_indexer_replay=True, num_layers=3, moe_router_topk=2)
    chosen, failed = np.ones((4, 3, 2), np.int32), np.full((1, 1, 1), -1, np.int32)
    samples = [Sample(index=index, reward=0.0, loss_mask=[1]) for index in range(3)]
    for sample, rows in zip(samples, (failed, chosen, chosen), strict=True):
        sample.rollout_indexer_topk, sample.remove_sample = rows, rows is failed
    post_process(args, samples)
    assert [sample.rollout_indexer_topk.shape for sample in samples] == [(1, 3, 2), (4, 3, 2), (4, 3, 2)]
    assert samples[0].rollout_indexer_topk.max() == -1
    assert samples[1].rollout_indexer_topk is chosen
    assert {sample.rollout_routed_experts for sample in samples} == {None}


async def test_an_evaluation_has_a_context_of_its_own_to_play_in(environment: str, checkpoint: Path, tmp_path: Path):
    contexts: dict[str, Any] = {"rollout_max_context_len": 100, "eval_max_context_len": 2000}
    with hosting(checkpoint, tmp_path, episode.settings(environment), **contexts) as (host, server):
        (trained, evaluated), _ = host.groups
        try:
            await host.generate(trained, SAMPLING, False)
            assert not server.requests
            await host.generate(evaluated, SAMPLING, True)
        finally:
            await aclose()
        assert [request.body["sampling_params"]["max_new_tokens"] for request in server.requests] == [200, 200]
    assert (trained.response_length, evaluated.reward) == (1, 1.0)


@pytest.mark.slow
async def test_mismatched_replay_data_is_engine_error_and_ends_run(environment: str, checkpoint: Path, tmp_path: Path):
    ended = None
    changes: dict[str, Any] = REPLAY | {"num_layers": 2}
    with hosting(checkpoint, tmp_path, episode.settings(environment), **changes) as (host, _):
        for number in range(17):
            try:
                samples = await played(host)
            except RunEnded as end:
                ended = str(end), number
                break
            assert {sample.status.value for sample in samples} == {"failed"}
    assert ended is not None
    assert "of the last 64 rollouts ended in ERROR; the latest: row" in ended[0]
    assert "routed_experts" in ended[0]
    assert ended[1] == 15
