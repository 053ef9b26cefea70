"""What slime alone shows: our hooks in its calls (case 14), rows of users among tasks, replayed choices."""

from __future__ import annotations

import asyncio
import logging
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import structs
from orl_cluster.hooks.samples import fill
from orl_core.task import TaskRow
from orl_rollout.episodes.journal import read_journal
from orl_rollout.run_folder.metrics_log import read
from orl_testing import Fault, FaultKind

from tests.cluster.contract.test_real_contract import mix
from tests.kit.cookbook_row import cookbook_row
from tests.kit.trajectories import ended
from tests.slime import episode
from tests.slime.host import of_slime
from tests.slime.playing import Hosted, hosting

pytestmark = pytest.mark.slime
REPLAY = {
    "use_rollout_routing_replay": True,
    "num_layers": 1,
    "moe_router_topk": 1,
    "rollout_top_p": 0.9,
}


async def test_14_the_logs_are_written_beside_slimes_own_and_its_cache_is_ours(
    hosted: Hosted, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.INFO)
    with hosted(hosting) as (host, _):
        groups = await asyncio.to_thread(host.rollout)
        host.log(groups)
        compute_metrics_from_samples = of_slime("slime.observability.rollout_metrics.compute_metrics_from_samples")
        theirs = compute_metrics_from_samples(host.args, [sample for group in groups for sample in group])
    (ours,) = read(tmp_path / "run" / "metrics.jsonl")
    hits = ours.metrics["playground/GuessNumber/cache_hits"]
    assert theirs["prefix_cache_hit_rate"] == pytest.approx(hits)
    assert 0.0 < hits < 1.0
    assert any("orl rollout 0" in record.getMessage() for record in caplog.records)
    assert any("perf 0" in record.getMessage() for record in caplog.records), "slime logs its own"


def test_speculation_and_caches_are_counted_anew_for_every_rollout(checkpoint: Path):
    Sample = of_slime("slime.utils.types.Sample")

    outcome = ended("a")
    counts = {"spec_accept_token_num": 3, "spec_draft_token_num": 4, "spec_verify_ct": 2}
    turns = tuple(
        structs.replace(turn, generations=tuple(structs.replace(one, extras=counts) for one in turn.generations))
        for turn in outcome.trajectory.turns
    )
    outcome = structs.replace(outcome, trajectory=structs.replace(outcome.trajectory, turns=turns))
    generations = sum(len(turn.generations) for turn in turns)
    sample = Sample(index=0)
    for _ in range(2):
        fill(sample, outcome, text_of=str)
        assert sample.spec_info.spec_accept_token_num == 3 * generations
        assert sample.spec_info.spec_accept_rate == 0.75
        ids = sum(len(turn.action_ids) for turn in turns)
        assert sample.spec_info.completion_token_num == ids


async def test_a_row_that_slime_cannot_play_does_not_end_the_job(hosted: Hosted, tmp_path: Path):
    rows = mix(tmp_path / "mix.jsonl", [{"role": "user", "content": "no template is applied to it"}])
    with hosted(hosting, prompt_data=str(rows)) as (host, _):
        tasks, plain = await asyncio.to_thread(host.rollout)
        data = host.train_data([tasks, plain])
    assert [sample.status.value for sample in plain] == ["failed", "failed"]
    assert data["rewards"][2:] == [0.0, 0.0]
    assert [any(mask) for mask in data["loss_masks"]] == [True, True, False, False]


async def test_tasks_of_the_cookbook_play_and_train(hosted: Hosted, tmp_path: Path):
    """slime hands over the text of their metadata as it is."""
    path = episode.make_tasks(tmp_path / "tasks.jsonl", 2)
    rows = [cookbook_row(msgspec.json.decode(line, type=TaskRow).metadata) for line in path.read_bytes().splitlines()]
    path.write_bytes(b"\n".join(map(msgspec.json.encode, rows)))
    with hosted(hosting, prompt_data=str(path)) as (host, _):
        groups = await asyncio.to_thread(host.rollout)
        data = host.train_data(groups)
    assert {sample.status.value for group in groups for sample in group} <= {"completed", "truncated"}
    assert all(any(mask) for mask in data["loss_masks"])


@pytest.mark.parametrize("thinking", [False, "strip"])
async def test_every_sample_carries_candidate_tokens_failed_included(thinking: Any, hosted: Hosted):
    refusal = Fault(kind=FaultKind.STATUS, status=400, message="no", at=0)
    with hosted(hosting, [refusal], thinks=bool(thinking), config={"thinking": thinking}, **REPLAY) as (host, _):
        groups = await asyncio.to_thread(host.rollout)
        data = host.train_data(groups)
    samples = [one for group in groups for call in group for one in (call if thinking else [call])]
    assert [sample.status.value for sample in samples].count("failed") == 1
    assert len(samples) > 4 if thinking else len(samples) == 4
    for index, sample in enumerate(samples):
        failed = sample.status.value == "failed"
        assert data["rollout_routed_experts"][index].shape == (len(sample.tokens) - 1, 1, 1)
        experts = data["rollout_routed_experts"][index].reshape(-1).tolist()
        assert experts == [0 if failed else token % 8 for token in sample.tokens[:-1]]
        kept, offsets = (list(map(int, data[f"rollout_top_p_token_{name}"][index])) for name in ("ids", "offsets"))
        spans = [kept[start:end] for start, end in pairwise(offsets)]
        response = sample.tokens[-sample.response_length :]
        sampled = [probability < 0.0 for probability in sample.rollout_log_probs]
        assert spans == [[token, token + 1] if bit else [] for token, bit in zip(response, sampled, strict=True)]
        assert any(sampled) != failed
        assert len(data["loss_masks"][index]) == len(spans)
        assert [bool(bit) for bit in data["loss_masks"][index]] == sampled


async def test_an_engine_that_returns_nothing_to_replay_makes_failures(hosted: Hosted):
    with hosted(hosting, [Fault(kind=FaultKind.NO_REPLAY)], **REPLAY) as (host, _):
        groups = await asyncio.to_thread(host.rollout)
        data = host.train_data(groups)
    assert {sample.status.value for group in groups for sample in group} == {"failed"}
    assert not any(any(mask) for mask in data["loss_masks"])


async def test_a_mask_policy_stands_and_the_journal_knows_the_step(hosted: Hosted, tmp_path: Path):
    with hosted(hosting, config={"rollout": {"train_on": {"calls": False}}}, **REPLAY) as (host, _):
        set_current_rollout_id = of_slime("slime.rollout.sample_hooks.set_current_rollout_id")
        set_current_rollout_id(4)
        try:
            groups = await asyncio.to_thread(host.rollout, 4)
        finally:
            set_current_rollout_id(None)
    samples = [sample for group in groups for sample in group]
    for sample in samples:
        assert len(sample.loss_mask) == len(sample.rollout_log_probs)
        sampled = sum(probability < 0.0 for probability in sample.rollout_log_probs)
        assert sum(sample.loss_mask) < sampled or sample.reward == 0.0
    assert {entry.step for entry in read_journal(tmp_path / "run")} == {5}
