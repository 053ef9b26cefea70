"""Other rows that miles hands to an adapter: plain prompts among tasks, and an engine's choices to be replayed."""

from __future__ import annotations

from pathlib import Path

import pytest
from orl_testing import Fault, FaultKind

from tests.cluster.contract.inside import step
from tests.miles.host import flat
from tests.miles.hosting import hosting
from tests.slime import episode
from tests.slime.playing import engine

pytestmark = pytest.mark.miles


async def test_routing_choices_reach_trainer_for_all_rows(environment: str, checkpoint: Path, tmp_path: Path):
    refusal = Fault(kind=FaultKind.STATUS, status=400, message="no", at=0)
    with (
        engine(checkpoint, [refusal]) as server,
        hosting(server, checkpoint, tmp_path, episode.settings(environment), use_rollout_routing_replay=True) as host,
    ):
        host.args.num_layers = host.args.moe_router_topk = 1  # as the stand-in has them
        groups, data = await step(host)
    assert "failed" in {sample.status.value for sample in flat(groups)}
    for tokens, experts, mask in zip(data["tokens"], data["rollout_routed_experts"], data["loss_masks"], strict=True):
        assert experts.shape == (len(tokens) - 1, 1, 1)
        expected = [token % 8 if any(mask) else -1 for token in tokens[:-1]]
        assert experts.flatten().tolist() == expected
