"""Weights reach the engine, as a checkpoint or by handles; the stand-in reads the checkpoint that it was sent."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest
import torch
from orl_core.errors import EngineError
from orl_rollout.edge.interrupt import on_thread
from orl_trl.engine.sglang_control import SglangControl
from orl_trl.engine.weights import WeightSender, buckets, named_as_saved
from safetensors.torch import load_file
from transformers import (
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from tests.trl.stand_in import served, untouched


def generate(url: str, count: int) -> dict[str, Any]:
    """Return the meta_info of `count` ids after a prompt."""
    asked = {"input_ids": [1, 2], "sampling_params": {"max_new_tokens": count, "ignore_eos": True}}
    body = json.dumps({**asked, "return_logprob": True}).encode()
    request = Request(f"{url}/generate", body, {"Content-Type": "application/json"})
    with urlopen(request, timeout=10) as answer:
        return json.load(answer)["meta_info"]


@pytest.fixture
def trained(model: Qwen3ForCausalLM) -> Qwen3ForCausalLM:
    other = Qwen3ForCausalLM(model.config)
    other.load_state_dict(model.state_dict())
    with torch.no_grad():
        for weight in other.parameters():
            weight.add_(0.02 * torch.randn_like(weight))
    return other


def test_weights_arrive_in_bf16_with_their_version(model: Qwen3ForCausalLM, trained: Qwen3ForCausalLM, tmp_path: Path):
    with served() as (server, control):
        sender = WeightSender(control, tmp_path)
        sender.send(model, "0")
        sender.send(trained, "1")
        assert server.weight_version == "1"
        assert torch.equal(server.state["model.norm.weight"], trained.model.norm.weight.to(torch.bfloat16))
        assert all(weight.dtype == torch.bfloat16 for weight in load_file(tmp_path / "model.safetensors").values())


def test_weights_go_by_handle_if_checkpoints_name_them_so(model: Qwen3ForCausalLM):
    sizes: dict[str, Any] = {
        "hidden_size": 8,
        "moe_intermediate_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
    }
    experts = Qwen3MoeForCausalLM(Qwen3MoeConfig(**sizes, num_key_value_heads=1, num_experts=2))
    assert named_as_saved(model)
    assert not named_as_saved(experts)


def test_a_bucket_reaches_the_engine_with_its_version():
    with served() as (server, control):
        control.update_from_tensors("AAAA", "7")
        assert (server.weights, server.weight_version) == (["AAAA"], "7")


def test_what_the_engine_refuses_is_an_error(tmp_path: Path):
    with served() as (_, control), pytest.raises(EngineError, match="update_weights_from_disk"):
        control.update_from_disk(str(tmp_path), "1")
    assert not control.healthy()
    with pytest.raises(EngineError, match="flush_cache"):
        control.flush_cache()


def test_a_busy_server_is_idle_after_its_requests_are_aborted():
    with served() as (server, control):
        server.score = lambda _prompt, ids: [-1.0] * len(ids)
        server.pause()
        waiting = on_thread(lambda: generate(server.url, 4))
        while not server.running:
            pass
        control.settle()
        assert waiting.result(10)["finish_reason"]["type"] == "abort"


def test_weights_wait_for_requests_of_others(model: Qwen3ForCausalLM, tmp_path: Path):
    flushed: list[bool] = []

    def flush(plain: Callable[[], bool]) -> bool:
        flushed.append(plain())
        return flushed[-1]

    with served() as (server, control):
        server.flush_cache = partial(flush, server.flush_cache)
        server.pause()
        others = on_thread(lambda: generate(server.url, 4))
        while not server.running:
            pass
        syncing = on_thread(lambda: WeightSender(control, tmp_path).send(model, "0"))
        while not flushed:
            pass
        assert not flushed[0]
        server.resume()
        syncing.result(10)
        assert len(others.result(10)["output_token_logprobs"]) == 4


def test_checkpoint_is_sent_once_handles_have_failed(
    model: Qwen3ForCausalLM, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    with served() as (server, control):
        sender = WeightSender(control, tmp_path, handles=True)  # no `sglang` is here
        sender.send(model, "0")
        sender.send(model, "1")
        assert server.weights == [str(tmp_path)] * 2
    assert [str(tmp_path) in record.message for record in caplog.records] == [True]


def test_engine_that_takes_no_weights_leaves_handles_in_use(
    model: Qwen3ForCausalLM, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    with served() as (server, control):
        sender = WeightSender(control, tmp_path, handles=True)
        server.tamper = lambda weights: weights["nothing"]  # pyright: ignore[reportAttributeAccessIssue]
        with pytest.raises(EngineError, match=str(tmp_path)):
            sender.send(model, "0")
        assert "CUDA IPC" not in caplog.text
        server.tamper = untouched
        sender.send(model, "1")
    assert "CUDA IPC" in caplog.text  # handles were tried again


def test_tied_weights_are_written_once(model: Qwen3ForCausalLM, tmp_path: Path):
    WeightSender(SglangControl("http://127.0.0.1:9"), tmp_path).write(model)
    written = load_file(tmp_path / "model.safetensors")
    assert model.config.tie_word_embeddings
    assert written.keys() == model.state_dict().keys() - {"lm_head.weight"}


@pytest.mark.parametrize("most", [1, 100, 4096, 1 << 30])
def test_buckets_hold_every_weight_once_and_in_order(model: Qwen3ForCausalLM, most: int):
    weights = list(model.state_dict().items())
    made = list(buckets(weights, most))
    assert [name for bucket in made for name, _ in bucket] == [name for name, _ in weights]
    assert all(len(bucket) == 1 or sum(2 * tensor.numel() for _, tensor in bucket) <= most for bucket in made)
