"""Our miles adapter on a miniature of miles: what only miles has, its replay among it."""

from __future__ import annotations

import asyncio
import sys
from argparse import ArgumentParser
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import numpy as np
import pytest
from orl_cluster.hooks.worker import aclose
from orl_core.errors import RunAborted
from orl_launcher.view.episode import load_decoder
from orl_miles import replay
from orl_miles.generate import RunEnded, generate
from orl_miles.hooks import log_eval, log_rollout, post_process
from orl_rollout.episodes.journal import read_journal
from orl_testing import Fault, FaultKind

from tests.kit.saved import hugging_face, saved
from tests.miles.miniature import Sample, hosting
from tests.slime import episode
from tests.slime.cases import key_of
from tests.slime.miniature import arguments
from tests.slime.playing import Hosted

REFUSED = Fault(kind=FaultKind.STATUS, status=400, message="no")
REPLAY = {"use_rollout_routing_replay": True, "use_rollout_indexer_replay": True, "num_layers": 1, "moe_router_topk": 1}
SAMPLING = {"temperature": 1.0, "max_new_tokens": 200}


async def played(host: Any, *, evaluation: bool = False) -> list[Any]:
    groups = await asyncio.to_thread(host.rollout, evaluation=evaluation)
    return [sample for group in groups for sample in group]


@pytest.mark.parametrize(
    ("changes", "evaluation", "status"),
    [
        ({"fully_async": True}, False, "aborted"),
        ({"dynamic_sampling_filter_path": "miles.rollout.filter_hub.x.check_no_aborted"}, False, "aborted"),
        ({"dynamic_sampling_filter_path": "orl_miles.hooks.has_signal"}, False, "failed"),
        ({"fully_async": True}, True, "failed"),
    ],
)
async def test_a_failure_is_aborted_where_miles_puts_another_group_in_its_place(
    changes: dict[str, Any], evaluation: bool, status: str, hosted: Hosted
):
    with hosted(hosting, [REFUSED], **changes) as (host, _):
        samples = await played(host, evaluation=evaluation)
    assert {(sample.status.value, sample.reward, sample.remove_sample) for sample in samples} == {(status, 0.0, True)}


async def test_abort_flag_ends_rollout_before_engine_request(hosted: Hosted):
    with hosted(hosting) as (host, server):
        host.aborted = True
        samples = await played(host)
        assert not server.requests
    assert {sample.status.value for sample in samples} == {"aborted"}
    assert all(sample.reward is not None for sample in samples)


@pytest.mark.slow
async def test_refusing_engine_ends_run_despite_host_catching_all(hosted: Hosted):
    with hosted(hosting, [REFUSED]) as (host, _):
        ended = None
        for _ in range(40):
            try:
                await played(host)
            except Exception as exc:  # as miles does
                raise AssertionError("miles would continue") from exc
            except RunEnded as end:
                ended = end
                break
    assert "of the last 64 rollouts ended in ERROR" in str(ended)
    with pytest.raises(RunAborted, match="ended in ERROR"):
        log_eval(0, host.args, {})


@pytest.mark.slow
async def test_the_journal_knows_the_step_by_the_batches_that_were_logged(hosted: Hosted):
    run = hosted.folder / "run"
    with hosted(hosting, orl_folder=str(run)) as (host, _):
        log_rollout(3, host.args, await played(host), None, 1.0)
        await played(host, evaluation=True)
        await played(host)
    assert [entry.step for entry in read_journal(run)] == [1] * 4 + [4] * 4 + [5] * 4
    assert load_decoder(run) is not None, "`orl show` reads the ids without the checkpoint"


@pytest.mark.slow
@pytest.mark.parametrize(("fsdp", "trained"), [(True, 7), (False, 8)])
async def test_journal_of_a_resumed_run_begins_after_its_checkpoint(fsdp: bool, trained: int, hosted: Hosted):
    run, load = hosted.folder / "run", saved(hosted.folder / "saved", 7, fsdp=fsdp)
    with hosted(hosting, orl_folder=str(run), load=str(load)) as (host, _):
        await played(host, evaluation=True)
        await played(host)
    assert [entry.step for entry in read_journal(run)] == [trained] * 4 + [trained + 1] * 4


async def test_an_adapter_of_several_is_refused(hosted: Hosted):
    with hosted(hosting) as (host, server):
        host.groups[0][0].adapter = "a"
        with pytest.raises(RunEnded, match="row 0"):
            await played(host)
        assert not server.requests


async def test_what_the_engine_chose_is_handed_on_for_every_id_but_the_last(hosted: Hosted):
    fault = Fault(kind=FaultKind.STATUS, status=400, message="no", at=0)
    with hosted(hosting, [fault], **REPLAY) as (host, server):
        samples = await played(host)
        assert all(request.body["return_routed_experts"] for request in server.requests)
        assert all(request.body["return_indexer_topk"] for request in server.requests)
    assert [sample.status.value for sample in samples].count("failed") == 1
    for sample in samples:
        failed = sample.status.value == "failed"
        expected = [-1 if failed else token % 8 for token in sample.tokens[:-1]]
        for rows in (sample.rollout_routed_experts, sample.rollout_indexer_topk):
            assert (rows.dtype, rows.shape) == ("int32", (len(sample.tokens) - 1, 1, 1))
            assert rows.reshape(-1).tolist() == expected


async def test_of_a_split_rollout_every_sample_has_its_own(hosted: Hosted):
    with hosted(hosting, thinks=True, config={"thinking": "strip"}, **REPLAY) as (host, _):
        groups = await asyncio.to_thread(host.rollout)
    split = [members for group in groups for members in group]
    assert max(map(len, split)) == 2
    for sample in (member for members in split for member in members):
        sample.validate()
        assert sample.rollout_routed_experts.reshape(-1).tolist() == [token % 8 for token in sample.tokens[:-1]]


async def test_the_name_of_the_lora_adapter_is_in_every_request(hosted: Hosted, monkeypatch: pytest.MonkeyPatch):
    lora: Any = ModuleType("miles.utils.lora")
    lora.LORA_ADAPTER_NAME = "an_adapter"
    lora.lora_rollout_enabled = lambda args: args.lora_rank > 0
    monkeypatch.setitem(sys.modules, lora.__name__, lora)
    for rank, sent in ((0, set()), (8, {"an_adapter"})):
        with hosted(hosting, lora_rank=rank) as (host, server):
            await played(host)
            assert {request.body["lora_path"] for request in server.requests if "lora_path" in request.body} == sent


async def test_the_routing_key_of_a_sample_goes_before_one_of_ours(hosted: Hosted):
    with hosted(hosting) as (host, server):
        first, second, *_ = (sample for group in host.groups for sample in group)
        first.routing_key, second.session_id = "by the router", None
        await played(host)
        keys = {key_of(request) for request in server.requests}
    assert len(keys) == 4
    assert keys > {"by the router", "s2", "s3"}


async def test_an_evaluation_on_engines_of_its_own_asks_their_router(hosted: Hosted):
    with hosted(hosting) as (host, training), hosted(hosting) as (own, held_out):
        try:
            await host.generate(host.groups[0][0], SAMPLING, False)
            await own.generate(own.groups[0][0], SAMPLING, True)
        finally:
            await aclose()
    assert (len(training.requests), len(held_out.requests)) == (2, 2)


async def test_the_option_of_ours_names_a_configuration(hosted: Hosted):
    parser = ArgumentParser()
    generate.add_arguments(parser)  # type: ignore[attr-defined]
    assert parser.parse_args([]).orl_config is None
    file = hosted.folder / "config.yaml"
    file.write_bytes(msgspec.yaml.encode(episode.settings(hosted.environment)))
    given = parser.parse_args(["--orl-config", str(file)]).orl_config
    with hosted(hosting, orl_config=given) as (host, _):
        samples = await played(host)
    assert {sample.status.value for sample in samples} == {"completed", "truncated"}


async def test_a_row_that_is_no_task_needs_miles(hosted: Hosted):
    with hosted(hosting) as (host, _):
        host.groups[0][0].metadata = {"question": "?"}
        with pytest.raises(RunEnded, match=r"row 0: its metadata is no task.*is not there"):
            await played(host)


async def test_evaluation_requests_no_replay_data(hosted: Hosted):
    with hosted(hosting, **REPLAY) as (host, server):
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


@pytest.mark.parametrize("described", [{"num_experts_per_tok": 8}, {"text_config": {"num_experts_per_tok": 8}}])
def test_fsdp_failure_is_as_wide_as_models_choice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, described: dict[str, Any]
):
    """FSDP's arguments have the model's layers alone. A batch that failed as a whole asks config.json."""
    monkeypatch.setattr(replay, "_widths", {})
    model = hugging_face(tmp_path / "model", **described)
    args = arguments(use_rollout_routing_replay=True, num_layers=3, hf_checkpoint=str(model))
    failed = Sample(index=0, tokens=[0, 0])
    replay.write(args, failed, ())
    assert failed.rollout_routed_experts.tolist() == [[[-1] * 8] * 3]


async def test_an_evaluation_has_a_context_of_its_own_to_play_in(hosted: Hosted):
    contexts: dict[str, Any] = {"rollout_max_context_len": 100, "eval_max_context_len": 2000}
    with hosted(hosting, **contexts) as (host, server):
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
async def test_mismatched_replay_data_is_engine_error_and_ends_run(hosted: Hosted):
    ended = None
    changes: dict[str, Any] = REPLAY | {"num_layers": 2}
    with hosted(hosting, **changes) as (host, _):
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
