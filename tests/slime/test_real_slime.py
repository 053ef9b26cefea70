"""Our adapter inside slime's own rollout code: `PYTHONPATH=<checkout of slime> just test-slime`.

The numbers are those of `cases.py`. Beside its table stand here the cases that only slime itself can show: 2, what is
aborted and kept for later; 6b, uneven groups; 8, evaluation.
"""

from __future__ import annotations

import asyncio
import copy
from pathlib import Path
from typing import Any

import pytest
from orl_testing import Fault, FaultKind

from tests.slime import episode
from tests.slime.cases import CASES, Case, check_continued, key_of
from tests.slime.playing import configuration, engine, hosting, play

pytestmark = pytest.mark.slime


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
async def test_a_case_of_the_contract(
    case: Case, environment: str, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    changes = {"post_process": "orl_slime.hooks.post_process"} | case.args
    config = configuration(case, environment)
    with (
        engine(checkpoint, case.faults, thinks=case.thinks) as server,
        hosting(server, checkpoint, tmp_path, config, **changes) as host,
    ):
        await play(case, host, server, monkeypatch)


async def test_1b_a_rollout_stays_on_its_engine_and_trains_as_it_was_sampled(
    environment: str, checkpoint: Path, tmp_path: Path
):
    with engine(checkpoint) as server, hosting(server, checkpoint, tmp_path, episode.settings(environment)) as host:
        groups = await asyncio.to_thread(host.rollout)
        data = host.train_data(groups)
        requests = list(server.requests)
    samples = [sample for group in groups for sample in group]
    assert [sample.status.value for sample in samples].count("completed") == 2
    assert sorted(sample.reward for sample in samples) == [0.0, 0.0, 1.0, 1.0]
    assert data["rewards"] == pytest.approx([0.7071 if sample.reward else -0.7071 for sample in samples], abs=1e-3)
    assert len(requests) == 8
    for sample, mask in zip(samples, data["loss_masks"], strict=True):
        assert len(mask) == len(sample.rollout_log_probs) == sample.response_length
        assert 0 < sum(mask) < len(mask)
        mine = [request for request in requests if key_of(request) == sample.session_id]
        assert len(mine) == 2
        last = mine[-1]
        assert sample.tokens[: len(last.body["input_ids"])] == last.body["input_ids"]
        assert all(
            probability == 0.0 for probability, bit in zip(sample.rollout_log_probs, mask, strict=True) if not bit
        )
        print(f"case 1: mask {sum(mask)}/{len(mask)}, reward {sample.reward}, status {sample.status.value}")


@pytest.mark.parametrize("masked", [False, True], ids=["2", "2c"])
async def test_2_an_aborted_episode_goes_on_with_its_tokens(
    masked: bool, environment: str, checkpoint: Path, tmp_path: Path
):
    """A session starts clean if old tokens are to be masked."""
    changes = {
        "partial_rollout": True,
        "mask_offpolicy_in_partial_rollout": masked,
        "rollout_batch_size": 1,
        "over_sampling_batch_size": 2,
        "n_samples_per_prompt": 1,
    }
    hang = Fault(kind=FaultKind.HANG, at=0, tokens=3)
    with (
        engine(checkpoint, [hang]) as server,
        hosting(server, checkpoint, tmp_path, episode.settings(environment), **changes) as host,
    ):
        (first,) = await asyncio.to_thread(host.rollout)
        assert [sample.status.value for sample in first] != ["aborted"]
        assert host.source.get_buffer_length() == 1
        ((aborted,),) = host.source.buffer
        assert aborted.status.value == "aborted"
        assert len(aborted.loss_mask) == len(aborted.rollout_log_probs) == aborted.response_length
        assert aborted.reward is not None
        index, server.weight_version = aborted.index, "1"
        host.args.over_sampling_batch_size = 1  # what is buffered is all that is played next
        (second,) = await asyncio.to_thread(host.rollout, 1)
        data = host.train_data([first, second])
        requests = list(server.requests)
    assert second[0].index == index
    assert second[0].status.value in ("completed", "truncated")
    assert len(data["tokens"][1]) > second[0].response_length > sum(data["loss_masks"][1]) > 0
    check_continued(second[0], requests, goes_on=not masked)


async def test_2b_without_partial_rollouts_what_is_aborted_is_dropped(
    environment: str, checkpoint: Path, tmp_path: Path
):
    changes = {"rollout_batch_size": 1, "over_sampling_batch_size": 2}
    hang = Fault(kind=FaultKind.HANG, at=0)
    with (
        engine(checkpoint, [hang]) as server,
        hosting(server, checkpoint, tmp_path, episode.settings(environment), **changes) as host,
    ):
        groups = await asyncio.to_thread(host.rollout)
        data = host.train_data(groups)
        assert host.source.get_buffer_length() == 0
        assert host.source.sample_index == 4
    assert len(groups) == 1
    assert all(any(mask) for mask in data["loss_masks"])


async def generate_and_split(args: Any, sample: Any, sampling_params: Any, evaluation: bool = False) -> list[Any]:
    """A custom generate that fans one rollout out into two siblings, as stripped reasoning will."""
    from orl_slime.generate import generate

    sample = await generate(args, sample, sampling_params, evaluation)
    sample.rollout_id = sample.index
    return [sample, copy.deepcopy(sample)] if sample.reward else [sample]


async def test_6b_uneven_groups_keep_their_own_baseline(environment: str, checkpoint: Path, tmp_path: Path):
    changes = {
        "custom_generate_function_path": "tests.slime.test_real_slime.generate_and_split",
        "post_process": "orl_slime.hooks.post_process",
    }
    with (
        engine(checkpoint) as server,
        hosting(server, checkpoint, tmp_path, episode.settings(environment), **changes) as host,
    ):
        groups = await asyncio.to_thread(host.rollout)
        data = host.train_data(groups)
    assert len(data["rewards"]) == 6
    expected = [0.7071 if raw else -0.7071 for raw in data["raw_reward"]]
    assert data["rewards"] == pytest.approx(expected, abs=1e-3)
    totals = [sum(sum(sample.loss_mask) for sample in call) for group in groups for call in group for _ in call]
    assert data["rollout_mask_sums"] == totals  # what the mean of each rollout is taken over (law L7)
    print(f"case 6b: {len(data['rewards'])} samples of 4 rollouts, rewards {sorted(set(data['rewards']))}")
