"""Our slime adapter against a stand-in of its Sample: what each ending becomes, and rewards as the estimator wants."""

from __future__ import annotations

import asyncio
from argparse import Namespace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from orl_cluster.hooks.samples import fill, split
from orl_cluster.hooks.worker import aclose
from orl_core.errors import ConfigError, RunAborted
from orl_core.task import Task
from orl_core.trajectory import StopReason, Trajectory
from orl_launcher.view.episode import load_decoder
from orl_rollout.episodes.journal import read_journal
from orl_rollout.results.outcome import outcome_of
from orl_rollout.run_folder import turn_count
from orl_slime.generate import generate
from orl_slime.hooks import reward
from orl_testing import SglangServer

from tests.kit.cookbook_row import cookbook_row
from tests.kit.secrets import NO_SECRETS
from tests.kit.strategies import stripped_trajectories, trajectories
from tests.kit.trajectories import environment
from tests.slime import episode
from tests.slime.miniature import Sample, arguments
from tests.slime.playing import engine

STATUS = {
    StopReason.FINISHED: "completed",
    StopReason.MAX_TURNS: "truncated",
    StopReason.MAX_TOKENS: "truncated",
    StopReason.TIMEOUT: "truncated",
    StopReason.ABORTED: "aborted",
    StopReason.ERROR: "failed",
}


@given(trajectory=trajectories)
def test_every_ending_gives_a_well_formed_sample(trajectory: Trajectory):
    sample = Sample(tokens=[9, 9], response="stale", response_length=1, loss_mask=[1], rollout_log_probs=[-1.0])
    outcome = outcome_of(trajectory, environment(), NO_SECRETS)
    fill(sample, outcome, text_of=str)
    assert sample.status.value == STATUS[trajectory.stop_reason]
    assert sample.response_length == len(sample.loss_mask or []) == len(sample.rollout_log_probs or []) > 0
    assert len(sample.tokens) > sample.response_length
    assert isinstance(sample.reward, float)
    assert sample.remove_sample == (not trajectory.trainable)
    if trajectory.trainable:
        (datum,) = outcome.datums
        assert sample.tokens == [*datum.prompt, *datum.response]
        assert sample.loss_mask == list(datum.loss_mask)
    else:
        assert not any(sample.loss_mask or [])
    if trajectory.stop_reason is StopReason.ERROR:
        assert sample.reward == 0.0


@given(trajectory=stripped_trajectories)
def test_stripped_reasoning_gives_samples_of_one_rollout(trajectory: Trajectory):
    outcome = outcome_of(trajectory, environment(), NO_SECRETS)
    first = Sample(index=7, metadata={"task": 1})
    samples = split(first, outcome, text_of=str)
    assert samples[0] is first
    assert len(samples) == max(1, len(outcome.datums))
    assert {(sample.rollout_id, sample.index, sample.reward) for sample in samples} == {(7, 7, outcome.reward)}
    for sample, datum in zip(samples, outcome.datums, strict=False):
        assert sample.tokens == [*datum.prompt, *datum.response]
        assert sample.loss_mask == list(datum.loss_mask)
        assert sample.rollout_log_probs == list(datum.logprobs)
        assert sample.response_length == len(datum.response)
        assert sample.status.value == STATUS[trajectory.stop_reason]
        assert sample.remove_sample == (not trajectory.trainable)
    assert len({id(sample.metadata) for sample in samples}) == len(samples)
    seconds = sum(result.seconds for turn in trajectory.turns for result in turn.results)
    assert sum(sample.non_generation_time for sample in samples) == seconds
    (evaluated,) = split(Sample(index=7), outcome, text_of=str, evaluation=True)
    if outcome.datums:
        assert evaluated.tokens == [*outcome.datums[-1].prompt, *outcome.datums[-1].response]


async def test_reward_returns_what_was_set():
    assert await reward(None, Sample(reward=0.5)) == 0.5
    assert await reward(None, [Sample(reward=0.5), Sample()]) == [0.5, 0.0]


SAMPLING = {"temperature": 1.0, "max_new_tokens": 200}


def arguments_of(url: str, checkpoint: Path, config: dict[str, Any], **changes: Any) -> Namespace:
    host, _, port = url.removeprefix("http://").partition(":")
    fields = {"hf_checkpoint": str(checkpoint), "n_samples_per_prompt": 1, "orl_config": config}
    return arguments(**fields, sglang_router_ip=host, sglang_router_port=int(port), **changes)


def row_of_one_task(folder: Path) -> dict[str, Any]:
    (row,) = (msgspec.json.decode(line) for line in episode.make_tasks(folder / "t.jsonl", 1).read_bytes().splitlines())
    return row


async def test_generate_writes_the_rollout_into_the_sample(environment: str, checkpoint: Path, tmp_path: Path):
    row = row_of_one_task(tmp_path)
    async with SglangServer(episode.player(checkpoint), context_tokens=4000) as server:
        args = arguments_of(server.url, checkpoint, episode.settings(environment), orl_folder=str(tmp_path / "run"))
        as_in_cookbook: Any = cookbook_row(msgspec.convert(row["metadata"], Task))["metadata"]
        metadata = (row["metadata"] | {"start_rollout_id": 3}, as_in_cookbook)
        samples = [Sample(index=i, session_id=f"s{i}", metadata=metadata[i]) for i in range(2)]
        sampling = {"temperature": 1.0, "max_new_tokens": 200, "top_k": -1, "stop": None}
        try:
            done = await asyncio.gather(*(generate(args, sample, sampling) for sample in samples))
            with pytest.raises(ConfigError, match="row 7"):
                await generate(args, Sample(index=7, metadata={"question": "?"}), sampling)
        finally:
            await aclose()
    assert done == samples
    entries = list(read_journal(tmp_path / "run"))
    assert sorted(entry.key for entry in entries) == ["s0", "s1"]
    moved = turn_count.read(tmp_path / "run")
    assert (moved.answered, moved.open) == (4, 0), "another process sees that turns are answered"
    decoder = load_decoder(tmp_path / "run")
    assert decoder is not None, "`orl show` reads the ids without the checkpoint"
    assert "guess" in decoder.decode(entries[0].trajectory.turns[0].observation)
    assert sorted((sample.status.value, sample.reward) for sample in done) == [("completed", 1.0), ("truncated", 0.0)]
    assert sampling == {"temperature": 1.0, "max_new_tokens": 200, "top_k": -1, "stop": None}
    for sample in done:
        seen = [r.body["input_ids"] for r in server.requests if r.headers["X-SMG-Routing-Key"] == sample.session_id]
        assert len(seen) == 2
        assert sample.tokens[: len(seen[1])] == seen[1]


class Unusable:
    """A counter of the trainer's that fails."""

    def add(self, _: Any) -> None:
        raise KeyError("completion_tokens")


async def test_a_sample_that_cannot_be_written_fails_and_the_third_ends_the_run(
    environment: str, checkpoint: Path, tmp_path: Path
):
    config = episode.settings(environment)
    with engine(checkpoint) as server:
        args = arguments_of(server.url, checkpoint, config)
        try:
            for index in range(3):
                sample: Any = Sample(index=index, metadata=row_of_one_task(tmp_path)["metadata"])
                sample.spec_info = Unusable()
                if index == 2:
                    with pytest.raises(RunAborted, match=r"3 rollouts failed for a bug in orl.*row 2.*KeyError"):
                        await generate(args, sample, SAMPLING)
                else:
                    await generate(args, sample, SAMPLING)
                assert (sample.status.value, sample.loss_mask, sample.remove_sample) == ("failed", [0], True)
        finally:
            await aclose()
