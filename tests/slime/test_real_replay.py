"""Slime replays the engine's choices in its own Sample and conversion: routed experts, the nucleus."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from orl_rollout.episodes.journal import read_journal
from orl_testing import Fault, FaultKind

from tests.slime import episode
from tests.slime.host import of_slime
from tests.slime.playing import engine, hosting

pytestmark = pytest.mark.slime
REPLAY = {
    "use_rollout_routing_replay": True,
    "num_layers": 1,
    "moe_router_topk": 1,
    "rollout_top_p": 0.9,
}


def settings(environment: str, thinking: Any = False) -> dict[str, Any]:
    return episode.settings(environment) | {"thinking": thinking}


@pytest.mark.parametrize("thinking", [False, "strip"])
async def test_every_sample_carries_candidate_tokens_failed_included(
    thinking: Any, environment: str, checkpoint: Path, tmp_path: Path
):
    refusal = Fault(kind=FaultKind.STATUS, status=400, message="no", at=0)
    with (
        engine(checkpoint, [refusal], thinks=bool(thinking)) as server,
        hosting(server, checkpoint, tmp_path, settings(environment, thinking), **REPLAY) as host,
    ):
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


async def test_an_engine_that_returns_nothing_to_replay_makes_failures(
    environment: str, checkpoint: Path, tmp_path: Path
):
    with (
        engine(checkpoint, [Fault(kind=FaultKind.NO_REPLAY)]) as server,
        hosting(server, checkpoint, tmp_path, settings(environment), **REPLAY) as host,
    ):
        groups = await asyncio.to_thread(host.rollout)
        data = host.train_data(groups)
    assert {sample.status.value for group in groups for sample in group} == {"failed"}
    assert not any(any(mask) for mask in data["loss_masks"])


async def test_a_mask_policy_stands_and_the_journal_knows_the_step(environment: str, checkpoint: Path, tmp_path: Path):
    config = settings(environment)
    config["rollout"] = {"train_on": {"calls": False}}
    changes = REPLAY | {"orl_folder": str(tmp_path / "run")}
    with engine(checkpoint) as server, hosting(server, checkpoint, tmp_path, config, **changes) as host:
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
