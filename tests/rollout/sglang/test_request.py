"""SglangEngine: what it sends, and what it makes of a good answer."""

from __future__ import annotations

import base64
from array import array
from collections.abc import Sequence

import pytest
from orl_core.errors import EngineError
from orl_rollout.loop.token_buffer import TokenBuffer
from orl_rollout.sglang.client import SglangEngine

from tests.kit.serving import ANSWER, PROMPT, SAMPLING, answered, answering, replying, serving


async def test_request_asks_for_ids_and_no_prompt_logprobs() -> None:
    async with serving() as (server, engine):
        await engine.generate(PROMPT, {"temperature": 0.7, "stop": None, "max_new_tokens": 4}, key="a")
    assert server.requests[0].body == {
        "input_ids": PROMPT,
        "return_logprob": True,
        "sampling_params": {
            "temperature": 0.7,
            "max_new_tokens": 4,
            "no_stop_trim": True,
            "skip_special_tokens": False,
        },
    }


async def test_payload_and_the_routing_key_reach_every_request() -> None:
    payload = {"lora_path": "adapter", "return_routed_experts": True}
    async with serving(payload=payload) as (server, engine):
        await engine.generate(PROMPT, SAMPLING, key="rollout-1")
        await engine.generate(PROMPT, SAMPLING, key="rollout-2")
    assert [request.headers["x-smg-routing-key"] for request in server.requests] == ["rollout-1", "rollout-2"]
    assert all(request.body["lora_path"] == "adapter" for request in server.requests)


async def test_what_a_trainer_replays_is_kept_as_it_came() -> None:
    async with serving(payload={"return_routed_experts": True}) as (_, engine):
        generation = await engine.generate(PROMPT, SAMPLING, key="a")
    experts = array("i")
    experts.frombytes(base64.b64decode(generation.extras["routed_experts"]))
    assert set(generation.extras) == {"routed_experts"}
    assert list(experts) == [5, 6, 7, 3, 4]


async def test_only_what_a_trainer_replays_or_counts_comes_along() -> None:
    replayed = {"top_p_token_ids": "AA==", "top_p_token_offsets": "AQ==", "indexer_topk": "Ag==", "spec_verify_ct": 3}
    generation = await answered(**replayed, spec_accept_rate=0.5, weight_version=4)
    assert generation.extras == replayed
    assert generation.weight_version == "4"


async def test_what_a_trainer_asked_for_and_did_not_get_is_an_error() -> None:
    nucleus = {"custom_params": {"return_top_p_token_ids": True}}
    async with answering(replying(top_p_kept_token_ids="AA==", top_p_kept_token_offsets="AQ==")) as engine:
        await engine.generate(PROMPT, nucleus, key="a")
    async with answering(replying()) as engine:
        await engine.generate(PROMPT, {}, key="a")
        with pytest.raises(EngineError, match="no `top_p_token_ids`, which was asked for"):
            await engine.generate(PROMPT, nucleus, key="a")


async def test_proxies_of_the_environment_are_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("NO_PROXY", "")
    monkeypatch.setenv("no_proxy", "")
    async with serving() as (_, engine):
        assert (await engine.generate(PROMPT, SAMPLING, key="a")).token_ids


async def test_outside_of_its_block_an_engine_is_a_bug() -> None:
    with pytest.raises(RuntimeError, match="async with"):
        await SglangEngine("http://127.0.0.1:9", context_tokens=10).generate(PROMPT, {}, key="a")


# Budgets and parameters


@pytest.mark.parametrize(
    ("wanted", "sent"), [(None, 17), (100, 17), (17, 17), (5, 5)], ids=["none", "more", "exactly", "less"]
)
async def test_max_new_tokens_is_clamped_to_the_context(wanted: int | None, sent: int) -> None:
    async with serving(context_tokens=20) as (server, engine):
        await engine.generate(PROMPT, {"max_new_tokens": wanted, "min_new_tokens": 50}, key="a")
    assert server.requests[0].body["sampling_params"]["max_new_tokens"] == sent
    assert server.requests[0].body["sampling_params"]["min_new_tokens"] == sent


@pytest.mark.parametrize(
    ("ids", "sampling", "key", "subject"),
    [
        ([], {}, "a", "no id to continue"),
        (PROMPT, {"max_new_tokens": 0}, "a", "max_new_tokens is 0"),
        (PROMPT, {}, "a\r\nX-Other: 1", "."),
        *((PROMPT, {name: 1}, "a", f"{name}$") for name in ("seed", "include_stop_str_in_output", "n", "stop_strs")),
    ],
)
async def test_request_that_cannot_be_made_is_not_sent(
    ids: list[int], sampling: dict[str, int], key: str, subject: str
) -> None:
    async with serving() as (server, engine):
        with pytest.raises(EngineError, match=subject):
            await engine.generate(ids, {**SAMPLING, **sampling}, key=key)
    assert server.received == 0


async def test_stop_strings_are_sent() -> None:
    async with serving() as (server, engine):
        with pytest.raises(EngineError, match="stop strings"):
            await engine.generate(PROMPT, {"stop": ["bb"]}, key="a")
    assert server.requests[0].body["sampling_params"]["stop"] == ["bb"]


async def test_every_parameter_of_slime_is_taken() -> None:
    sampling = {
        "temperature": 1.0,
        "top_p": 0.9,
        "top_k": -1,
        "max_new_tokens": 8,
        "stop": None,
        "stop_token_ids": None,
        "skip_special_tokens": False,
        "no_stop_trim": True,
        "spaces_between_special_tokens": False,
        "sampling_seed": 3,
        "custom_params": {"return_top_p_token_ids": True},
    }
    async with serving() as (_, engine):
        assert (await engine.generate(PROMPT, sampling, key="a")).token_ids == tuple(ANSWER)


@pytest.mark.parametrize(
    "ids",
    [[5, 6, 7], (5, 6, 7), TokenBuffer([5, 6, 7]), range(5, 8), array("i", [5, 6, 7])],
    ids=lambda ids: type(ids).__name__,
)
async def test_any_sequence_of_ids_is_sent(ids: Sequence[int]) -> None:
    async with serving() as (server, engine):
        for _ in range(2):
            await engine.generate(ids, SAMPLING, key="a")
    assert [request.body["input_ids"] for request in server.requests] == [PROMPT, PROMPT]
