"""Our adapter inside miles' own rollout code: `PYTHONPATH=<checkout of miles> just test-miles`.

The contract suite plays the cases that slime has too. Here is what miles alone has.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from orl_testing import Fault, FaultKind

from tests.cluster.contract.inside import step
from tests.miles.hosting import hosting
from tests.slime import episode
from tests.slime.playing import engine

pytestmark = pytest.mark.miles


PARTIAL = {"partial_rollout": True, "rollout_batch_size": 1, "over_sampling_batch_size": 2, "n_samples_per_prompt": 1}


# shows G13
async def test_2c_the_class_api_masks_nothing_of_before(environment: str, checkpoint: Path, tmp_path: Path):
    flags = PARTIAL | {"mask_offpolicy_in_partial_rollout": True}
    with (
        engine(checkpoint) as server,
        pytest.raises(ValueError, match="MILES_USE_LEGACY_ROLLOUT_V1"),
        hosting(server, checkpoint, tmp_path, episode.settings(environment), **flags),
    ):
        pass


async def test_7_a_group_with_a_failure_is_replaced_where_miles_is_asked_to(
    environment: str, checkpoint: Path, tmp_path: Path
):
    """`check_no_aborted` looks for ABORTED alone, so under it that is what a failure is."""
    refusal = Fault(kind=FaultKind.STATUS, status=400, message="no", at=0)
    flags = {"dynamic_sampling_filter_path": "miles.rollout.filter_hub.dynamic_sampling_filters.check_no_aborted"}
    with (
        engine(checkpoint, [refusal]) as server,
        hosting(server, checkpoint, tmp_path, episode.settings(environment), **flags) as host,
    ):
        groups, data = await step(host)
    assert host.metrics == {"rollout/dynamic_filter/drop_group_has_aborted": 1}
    assert len(groups) == 2
    assert all(any(mask) for mask in data["loss_masks"])
