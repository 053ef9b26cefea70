"""Our adapters inside the rollout code of slime and of miles: `just test-slime`, `just test-miles` with a checkout.

The numbers are those of `tests/slime/cases.py`. Here are also the cases that only a trainer itself can show: 1b, a
routing key for each rollout; 2, what is aborted and kept for later; 6b, uneven groups; 8, evaluation.
"""

from __future__ import annotations

import asyncio
import json
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from orl_launcher.main import main
from orl_rollout.run_folder.checkpoint import checkpoint_in
from orl_rollout.run_folder.metrics_log import read
from orl_testing import Fault, FaultKind

from tests.cluster.contract.inside import BOTH, MILES, SECONDS, SLIME, Inside, by_trainer, flat, param, step
from tests.kit.health import hold_that_a_hanging_engine_is_replaced
from tests.kit.torch_saved import weights_of
from tests.local.checkpoints import write_checkpoint
from tests.slime import episode
from tests.slime.cases import Case, check, check_continued, key_of, route_of
from tests.slime.playing import Hosted, break_once, configuration

HANG = Fault(kind=FaultKind.HANG, at=0, tokens=3)
REFUSAL = Fault(kind=FaultKind.STATUS, status=400, message="no", at=0)
LABEL = "I give up"
QUESTION = "A number of 100 to 111?"


@pytest.mark.parametrize(("inside", "case"), [param(one, case, id=case.name) for one in BOTH for case in one.cases])
async def test_a_case_of_the_contract(inside: Inside, case: Case, hosted: Hosted, monkeypatch: pytest.MonkeyPatch):
    if "bug" in case.name:
        break_once(monkeypatch)
    config = configuration(case, hosted.environment)
    with hosted(inside.hosting, case.faults, thinks=case.thinks, config=config, **case.args) as (host, server):
        if case.raises:
            with pytest.raises(inside.refused, match=case.raises):
                await step(host)
            return
        groups, data = await step(host)
        check(case, groups, data, list(server.requests))


@by_trainer
async def test_1b_a_rollout_stays_on_its_engine_and_trains_as_it_was_sampled(inside: Inside, hosted: Hosted):
    with hosted(inside.hosting) as (host, server):
        groups, data = await step(host)
        requests = list(server.requests)
    assert len({key_of(request) for request in requests}) == 4
    assert len(requests) == 8
    for sample, mask in zip(flat(groups), data["loss_masks"], strict=True):
        assert len(mask) == len(sample.rollout_log_probs) == sample.response_length
        assert 0 < sum(mask) < len(mask)
        mine = [request for request in requests if key_of(request) == route_of(sample)]
        assert len(mine) == 2
        shown = mine[-1].body["input_ids"]
        assert sample.tokens[: len(shown)] == shown
        assert not any(logprob for logprob, bit in zip(sample.rollout_log_probs, mask, strict=True) if not bit)


@pytest.mark.parametrize(
    ("inside", "masked", "limit"),
    [
        param(SLIME, False, None, id="2"),
        param(SLIME, True, None, id="2c"),
        param(MILES, False, None, id="2"),
        param(MILES, False, 8, id="2 with a limit of sessions"),
    ],
)
async def test_2_an_aborted_episode_goes_on_with_its_tokens(
    inside: Inside, masked: bool, limit: int | None, hosted: Hosted
):
    """A session starts clean if old tokens are to be masked, or if it would take another's place."""
    flags = {"partial_rollout": True, "rollout_batch_size": 1, "over_sampling_batch_size": 2, "n_samples_per_prompt": 1}
    flags["mask_offpolicy_in_partial_rollout"] = masked
    config = episode.settings(hosted.environment)
    config["environments"]["playground/GuessNumber"]["max_concurrency"] = limit
    with hosted(inside.hosting, [HANG], config=config, **flags) as (host, server):
        (first,), _ = await step(host)
        assert [sample.status.value for sample in first] != ["aborted"]
        assert host.source.get_buffer_length() == 1
        ((aborted,),) = host.source.buffer
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
    check_continued(second[0], requests, goes_on=not masked and limit is None)


@by_trainer
async def test_2b_without_partial_rollouts_what_is_aborted_is_dropped(inside: Inside, hosted: Hosted):
    with hosted(inside.hosting, [HANG], rollout_batch_size=1, over_sampling_batch_size=2) as (host, _):
        groups, data = await step(host)
        assert host.source.get_buffer_length() == 0
        assert host.source.sample_index == 4
    assert len(groups) == 1
    assert all(any(mask) for mask in data["loss_masks"])


@by_trainer
async def test_6b_uneven_groups_keep_their_own_baseline(inside: Inside, hosted: Hosted):
    """A winner thinks twice: a rollout that wins is two samples, one that gives up is one."""
    with hosted(inside.hosting, thinks=True, config={"thinking": "strip"}) as (host, _):
        groups, data = await step(host)
    assert sorted(len(call) for group in groups for call in group) == [1, 1, 2, 2]
    assert data["rewards"] == pytest.approx([0.7071 if raw else -0.7071 for raw in data["raw_reward"]], abs=1e-3)
    totals = [sum(sum(sample.loss_mask) for sample in call) for group in groups for call in group for _ in call]
    assert data["rollout_mask_sums"] == totals  # what the mean of each rollout is taken over (law L7)


def mix(path: Path, prompt: Any) -> Path:
    """One task of orl, and one row as users of a trainer write them."""
    row = {"prompt": prompt, "label": LABEL, "metadata": {"rm_type": "f1"}}
    episode.make_tasks(path, 1)
    path.write_text(path.read_text(encoding="utf-8") + json.dumps(row) + "\n", encoding="utf-8")
    return path


@pytest.mark.parametrize(("thinking", "chat"), [(False, False), ("strip", False), (False, True)])
@by_trainer
async def test_plain_and_chat_rows_use_the_trainers_rollout_and_reward(
    inside: Inside, thinking: Any, chat: bool, hosted: Hosted, tmp_path: Path
):
    messages = [{"role": "user", "content": QUESTION}]
    rows = mix(
        tmp_path / "mix.jsonl",
        messages if chat else f"<|im_start|>user\n{QUESTION}<|im_end|>\n<|im_start|>assistant\n",
    )
    flags = {
        "apply_chat_template": chat,
        "custom_rm_path": f"orl_{inside.name}.hooks.reward",
        "prompt_data": rows,
        "eval_prompt_data": ["mix", rows],
        "n_samples_per_eval_prompt": 2,
    }
    with hosted(inside.hosting, config={"thinking": thinking}, **flags) as (host, _):
        f1_score = inside.of(inside.f1_score)
        groups, data = await step(host)
        evaluated = await asyncio.wait_for(asyncio.to_thread(host.evaluate), SECONDS)
        host.log_evaluation(evaluated)
    plain = flat(groups[1:])
    assert {sample.status.value for sample in plain} == {"completed"}
    expected = sorted(round(f1_score(sample.response, LABEL)[0], 3) for sample in plain)
    assert sorted(round(sample.reward, 3) for sample in plain) == expected
    assert len(set(expected)) == 2
    assert data["rewards"] == pytest.approx([0.7071 if raw > 0.5 else -0.7071 for raw in data["raw_reward"]], abs=1e-3)
    assert all(any(mask) for mask in data["loss_masks"])
    assert len(evaluated["mix"]["rewards"]) == 4


def indices(groups: list[list[Any]]) -> list[int]:
    """Return the tasks of groups, by their place in the split."""
    return [group[0].metadata["index"] for group in groups]


@by_trainer
async def test_own_data_source_and_buffer_filter_feed_rollouts(inside: Inside, hosted: Hosted):
    own = {"data_source_path": "LastFirst", "buffer_filter_path": "newest_first"}
    flags: dict[str, Any] = {name: f"tests.slime.sources.{value}" for name, value in own.items()}
    with hosted(inside.hosting, **flags) as (host, _):
        first, _ = await step(host)
        host.source.add_samples(first)
        again, data = await step(host, 1)
    assert sorted(indices(first)) == sorted(indices(again)) == [6, 7]
    assert {sample.metadata.get("drawn") for sample in flat(again)} == {"newest first"}
    assert {sample.status.value for sample in flat(again)} <= {"completed", "truncated"}
    assert all(any(mask) for mask in data["loss_masks"])


@pytest.mark.parametrize("thinking", [False, "strip"])
@by_trainer
async def test_a_group_without_signal_is_dropped_and_another_takes_its_place(
    inside: Inside, thinking: Any, hosted: Hosted
):
    flags: dict[str, Any] = {"dynamic_sampling_filter_path": f"orl_{inside.name}.hooks.has_signal"}
    thoughts = {"thinks": bool(thinking), "config": {"thinking": thinking}}
    with hosted(inside.hosting, [REFUSAL], **thoughts, **flags) as (host, _):
        groups, data = await step(host)
    assert len(groups) == 2
    assert host.metrics == {"rollout/dynamic_filter/drop_too_few_train": 1}
    assert all(any(mask) for mask in data["loss_masks"])


@pytest.mark.parametrize(
    ("inside", "filtered"),
    [
        param(SLIME, "orl_slime.hooks.has_signal", id="has_signal"),
        param(MILES, None, id="no filter"),
        param(MILES, "orl_miles.hooks.has_signal", id="has_signal"),
        param(MILES, "miles.rollout.filter_hub.dynamic_sampling_filters.check_no_aborted", id="check_no_aborted"),
    ],
)
async def test_a_dead_environment_ends_the_run_whatever_the_filter_drops(
    inside: Inside, filtered: str | None, hosted: Hosted
):
    flags: dict[str, Any] = {"dynamic_sampling_filter_path": filtered} if filtered else {}
    sizes: dict[str, Any] = {"rollout_batch_size": 40, "over_sampling_batch_size": 40}
    with hosted(inside.hosting, config=episode.settings("http://127.0.0.1:9"), **flags, **sizes) as (host, server):
        with pytest.raises(inside.aborted, match="of the last 64 rollouts ended in ERROR"):
            await step(host)
        assert not server.requests


@pytest.mark.parametrize("thinking", [False, "strip"])
@by_trainer
async def test_8_an_evaluation_counts_every_rollout_once(inside: Inside, thinking: Any, hosted: Hosted, tmp_path: Path):
    flags: dict[str, Any] = {
        "custom_rm_path": f"orl_{inside.name}.hooks.reward",
        "eval_prompt_data": ["held_out", episode.make_tasks(tmp_path / "held_out.jsonl", 8)],
        "n_samples_per_eval_prompt": 2,
    }
    with hosted(inside.hosting, thinks=bool(thinking), config={"thinking": thinking}, **flags) as (host, _):
        data = await asyncio.wait_for(asyncio.to_thread(host.evaluate), SECONDS)
        host.log_evaluation(data)
    assert sorted(data["held_out"]["rewards"]) == [0.0] * 8 + [1.0] * 8
    assert data["held_out"]["truncated"] == [sample.reward == 0.0 for sample in data["held_out"]["samples"]]
    (row,) = read(tmp_path / "run" / "metrics.jsonl")
    assert (row.kind, row.metrics["playground/GuessNumber/rollouts"]) == ("eval", 16.0)


@by_trainer
async def test_hanging_engine_is_killed_and_rollouts_go_on(inside: Inside, monkeypatch: pytest.MonkeyPatch):
    await hold_that_a_hanging_engine_is_replaced(inside.of(f"{inside.name}.utils.health_monitor"), monkeypatch)


@by_trainer
def test_weights_come_back_by_the_trainers_tool(inside: Inside, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """From Hugging Face to Megatron the tools need a GPU, and are not shown here."""
    monkeypatch.chdir(tmp_path)
    write_checkpoint(tmp_path / "model")
    inside.save(tmp_path / "model", tmp_path / "saved", number=inside.saved)
    assert main(["convert", inside.name, "saved", "--model", "model", "--python", sys.executable]) == 0
    before, after = weights_of(tmp_path / "model"), weights_of(tmp_path / "saved_hf")
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    found = checkpoint_in(tmp_path / "saved_hf")
    assert found is not None
    assert (found.format, found.trainer, found.step) == ("hf", inside.name, 20)


@by_trainer
def test_save_interval_counts_rollouts(inside: Inside):
    """A step of orl is one rollout of the trainer; the last one is always saved."""
    saves = inside.of(f"{inside.name}.utils.misc.should_run_periodic_action")
    assert [batch + 1 for batch in range(10) if saves(batch, 3, None, 10)] == [3, 6, 9, 10]


# Files of a trainer that print the lines and the names that `orl_cluster.launch.run.process` reads.
PRINTERS = {
    "slime": (
        *("backends/megatron_utils/model.py", "backends/megatron_utils/loss.py"),
        # One file, and until slime 0.3.1 the two others.
        *("observability/train_metric_utils.py", "backends/megatron_utils/data.py", "utils/train_metric_utils.py"),
    ),
    "miles": (
        *("backends/training_utils/log_utils.py", "backends/training_utils/loss_hub/losses.py"),
        *("utils/train_metric_utils.py", "backends/fsdp_utils/actor.py"),
    ),
}
PRINTED = (
    *("step {accumulated_step_id}: {log_dict", "{metric_name} {rollout_id}: {reduced_log_dict}"),
    *("perf {rollout_id}: {log_dict}", 'gather_log_data("rollout"', "{role_tag}grad_norm", "lr-pg_{param_group_id}"),
    *('"loss"', '"kl_loss"', '"ppo_kl"', '"entropy_loss"', '"pg_clipfrac"', '"train_rollout_logprob_abs_diff"'),
    *(f'"perf/{name}_time"' for name in ("train_wait", "train", "step")),
)


@by_trainer
def test_lines_and_names_of_the_log_are_the_trainers(inside: Inside):
    spec = find_spec(inside.name)
    assert spec is not None
    root = Path(next(iter(spec.submodule_search_locations or ())))
    files = [root / name for name in PRINTERS[inside.name] if (root / name).is_file()]
    sources = "\n".join(file.read_text(encoding="utf-8") for file in files)
    assert [text for text in PRINTED if text not in sources] == []
