"""Our adapter inside miles' own rollout code: `PYTHONPATH=<checkout of miles> just test-miles`.

The table is slime's (`tests/slime/cases.py`) with the rows where miles differs. Beside it stand here the cases that
only miles itself shows: 1b, a routing key for each rollout; 2, what is aborted and kept for later; 6b, uneven groups.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from orl_miles.generate import RunEnded
from orl_testing import Fault, FaultKind

from tests.miles.host import flat
from tests.miles.hosting import SECONDS, hosting, step
from tests.slime import episode
from tests.slime.cases import CASES, Case, check, check_continued, key_of
from tests.slime.playing import break_once, configuration, engine

pytestmark = pytest.mark.miles
DIFFERENT: dict[str, dict[str, Any]] = {
    # miles asserts that nobody has set a reward yet, and its class API draws another group for every assertion.
    "9 the reward model is asked for whole groups": {
        "args": {"group_rm": True, "custom_rm_path": "orl_miles.hooks.reward"},
        "raises": "group-rm",
    },
    # miles replays no nucleus.
    "the nucleus of top-p would be replayed": {"raises": ""},
}
ROWS = [replace(case, **DIFFERENT.get(case.name, {})) for case in CASES]


@pytest.mark.parametrize("case", ROWS, ids=lambda case: case.name)
async def test_a_case_of_the_contract(
    case: Case, environment: str, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    if "bug" in case.name:
        break_once(monkeypatch)
    with (
        engine(checkpoint, case.faults, thinks=case.thinks) as server,
        hosting(server, checkpoint, tmp_path, configuration(case, environment), **case.args) as host,
    ):
        if case.raises:
            with pytest.raises(RunEnded, match=case.raises):
                await step(host)
            return
        groups, data = await step(host)
        check(case, groups, data, list(server.requests))


async def test_1b_a_rollout_stays_on_its_engine_and_trains_as_it_was_sampled(
    environment: str, checkpoint: Path, tmp_path: Path
):
    with (
        engine(checkpoint) as server,
        hosting(server, checkpoint, tmp_path, episode.settings(environment)) as host,
    ):
        groups, data = await step(host)
        requests = list(server.requests)
    assert len({key_of(request) for request in requests}) == 4
    assert len(requests) == 8
    for sample, mask in zip(flat(groups), data["loss_masks"], strict=True):
        assert 0 < sum(mask) < len(mask)
        mine = [request for request in requests if key_of(request) == sample.routing_key]
        assert len(mine) == 2
        shown = mine[-1].body["input_ids"]
        assert sample.tokens[: len(shown)] == shown


PARTIAL = {"partial_rollout": True, "rollout_batch_size": 1, "over_sampling_batch_size": 2, "n_samples_per_prompt": 1}
HANG = Fault(kind=FaultKind.HANG, at=0, tokens=3)


@pytest.mark.parametrize("limit", [None, 8], ids=["2", "2 with a limit of sessions"])
async def test_2_an_aborted_episode_goes_on_with_its_tokens(
    limit: int | None, environment: str, checkpoint: Path, tmp_path: Path
):
    """A session starts clean if it would take another's place."""
    config = episode.settings(environment)
    config["environments"]["playground/GuessNumber"]["max_concurrency"] = limit
    with (
        engine(checkpoint, [HANG]) as server,
        hosting(server, checkpoint, tmp_path, config, **PARTIAL) as host,
    ):
        (first,), _ = await step(host)
        assert [sample.status.value for sample in first] != ["aborted"]
        assert host.source.get_buffer_length() == 1
        ((aborted,),) = host.source.buffer
        aborted.validate()
        assert aborted.status.value == "aborted"
        assert len(aborted.loss_mask) == len(aborted.rollout_log_probs) == aborted.response_length
        assert aborted.reward is not None
        index, server.weight_version = aborted.index, "1"
        host.args.over_sampling_batch_size = 1  # what is buffered is all that is played next
        (second,) = await asyncio.wait_for(asyncio.to_thread(host.rollout, 1), SECONDS)
        data = host.train_data([first, second])
        requests = list(server.requests)
    assert second[0].index == index
    assert second[0].status.value in ("completed", "truncated")
    assert len(data["tokens"][1]) > second[0].response_length > sum(data["loss_masks"][1]) > 0
    check_continued(second[0], requests, goes_on=limit is None)


async def test_2b_without_partial_rollouts_what_is_aborted_is_dropped(
    environment: str, checkpoint: Path, tmp_path: Path
):
    flags = {"rollout_batch_size": 1, "over_sampling_batch_size": 2}
    with (
        engine(checkpoint, [HANG]) as server,
        hosting(server, checkpoint, tmp_path, episode.settings(environment), **flags) as host,
    ):
        groups, data = await step(host)
        assert host.source.get_buffer_length() == 0
        assert host.source.sample_index == 4
    assert len(groups) == 1
    assert all(any(mask) for mask in data["loss_masks"])


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


async def test_6b_uneven_groups_keep_their_own_baseline(environment: str, checkpoint: Path, tmp_path: Path):
    """A winner thinks twice: a rollout that wins is two samples, one that gives up is one."""
    config = episode.settings(environment) | {"thinking": "strip"}
    with (
        engine(checkpoint, thinks=True) as server,
        hosting(server, checkpoint, tmp_path, config) as host,
    ):
        groups, data = await step(host)
    assert sorted(len(call) for group in groups for call in group) == [1, 1, 2, 2]
    assert data["rewards"] == pytest.approx([0.7071 if raw else -0.7071 for raw in data["raw_reward"]], abs=1e-3)
    totals = [sum(map(sum, (sample.loss_mask for sample in call))) for group in groups for call in group for _ in call]
    assert data["rollout_mask_sums"] == totals
