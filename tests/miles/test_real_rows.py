"""Other rows that miles hands to an adapter: plain prompts beside tasks, and an engine's choices to be replayed."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from orl_miles.generate import RunEnded
from orl_testing import Fault, FaultKind

from tests.miles.host import flat, of_miles
from tests.miles.hosting import SECONDS, hosting, step
from tests.slime import episode
from tests.slime.playing import engine
from tests.slime.test_real_rows import LABEL, SOURCES, indices, mix

pytestmark = pytest.mark.miles
PROMPT = "<|im_start|>user\nA number of 100 to 111?<|im_end|>\n<|im_start|>assistant\n"


@pytest.mark.parametrize("thinking", [False, "strip"])
async def test_plain_rows_are_played_by_miles_and_scored_by_its_reward_model(
    thinking: Any, environment: str, checkpoint: Path, tmp_path: Path
):
    rows = mix(tmp_path / "mix.jsonl", PROMPT)
    flags = {
        "custom_rm_path": "orl_miles.hooks.reward",
        "prompt_data": rows,
        "eval_prompt_data": ["mix", rows],
        "n_samples_per_eval_prompt": 2,
    }
    config = episode.settings(environment) | {"thinking": thinking}
    with (
        engine(checkpoint) as server,
        hosting(server, checkpoint, tmp_path, config, **flags) as host,
    ):
        f1_score = of_miles("miles.rollout.rm_hub.f1.f1_score")
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


async def test_legacy_function_refuses_plain_rows_in_class_api(environment: str, checkpoint: Path, tmp_path: Path):
    rows = mix(tmp_path / "mix.jsonl", PROMPT)
    config = episode.settings(environment)
    with (
        engine(checkpoint) as server,
        hosting(server, checkpoint, tmp_path, config, prompt_data=rows) as host,
        pytest.raises(RunEnded, match=r"row 2: .*`miles.rollout.sglang_rollout` is not there"),
    ):
        await step(host)


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


async def test_own_data_source_and_buffer_filter_feed_miles(environment: str, checkpoint: Path, tmp_path: Path):
    flags = {"data_source_path": f"{SOURCES}.LastFirst", "buffer_filter_path": f"{SOURCES}.newest_first"}
    with (
        engine(checkpoint) as server,
        hosting(server, checkpoint, tmp_path, episode.settings(environment), **flags) as host,
    ):
        first, _ = await step(host)
        host.source.add_samples(first)
        again, data = await step(host)
    assert sorted(indices(first)) == sorted(indices(again)) == [6, 7]
    assert {sample.metadata.get("drawn") for sample in flat(again)} == {"newest first"}
    assert {sample.status.value for sample in flat(again)} <= {"completed", "truncated"}
    assert all(any(mask) for mask in data["loss_masks"])


async def test_chat_rows_are_rendered_and_played_by_miles(environment: str, checkpoint: Path, tmp_path: Path):
    rows = mix(tmp_path / "mix.jsonl", [{"role": "user", "content": "A number of 100 to 111?"}])
    flags = {"custom_rm_path": "orl_miles.hooks.reward", "prompt_data": rows, "apply_chat_template": True}
    with (
        engine(checkpoint) as server,
        hosting(server, checkpoint, tmp_path, episode.settings(environment), **flags) as host,
    ):
        f1_score = of_miles("miles.rollout.rm_hub.f1.f1_score")
        groups, data = await step(host)
    plain = flat(groups[1:])
    assert {sample.status.value for sample in plain} == {"completed"}
    assert sorted(round(sample.reward, 3) for sample in plain) == sorted(
        round(f1_score(sample.response, LABEL)[0], 3) for sample in plain
    )
    assert all(any(mask) for mask in data["loss_masks"])
