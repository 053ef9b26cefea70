"""Weights reach the engine, as a checkpoint or by handles; sick ones stop a run, healthy ones never do."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest
import torch
from orl_core.errors import EngineError
from orl_local.engine.control import Control
from orl_local.engine.fingerprints import fingerprints
from orl_local.engine.served_engine import ServedEngine, Server, WeightSender
from orl_local.engine.sglang_control import SglangControl
from orl_local.engine.weight_check import METRIC
from orl_local.engine.weights import SharedWeights, buckets, named_as_saved
from safetensors.torch import load_file
from transformers import Qwen3ForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

from tests.local.fakes import Player, by_row, make_run, summary
from tests.local.stand_in import CONTROLS, LAYER, Direct, Loaded, Near, Tamper, Weights, served, untouched, update


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


def sender_of(weights: Direct, control: SglangControl, folder: Path, *, own: bool = True) -> WeightSender:
    return WeightSender(weights, control, Server(url=control.url, context_tokens=4096, folder=folder, own=own))


async def test_weights_arrive_in_bf16_with_their_version(
    model: Qwen3ForCausalLM, trained: Qwen3ForCausalLM, tmp_path: Path
):
    with served() as (server, control):
        for version, weights in enumerate((model, trained)):
            await sender_of(Direct(weights), control, tmp_path, own=False).send(f"{version}")
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


async def test_a_bucket_reaches_the_engine_with_its_version():
    with served() as (server, control):
        await control.update_from_tensors("AAAA", "7")
        assert (server.weights, server.weight_version) == (["AAAA"], "7")


async def test_each_gpu_of_an_engine_gets_the_bucket_and_shows_its_part():
    with served() as (server, control):
        server.gpus = 2
        server.checksums = {"a": "1", "b": "x"}, {"a": "2", "b": "x"}
        with pytest.raises(EngineError, match="update_weights_from_tensor"):
            await control.update_from_tensors("AAAA", "7")
        both = SglangControl(server.url, 2)
        await both.update_from_tensors("AAAA", "7")
        assert (server.weights, await both.checksums()) == (["AAAA"], {"a": "12", "b": "xx"})


async def test_what_the_engine_refuses_is_an_error(tmp_path: Path):
    with served() as (_, control), pytest.raises(EngineError, match="update_weights_from_disk"):
        await control.update_from_disk(str(tmp_path), "1")
    assert not await control.healthy()
    with pytest.raises(EngineError, match="flush_cache"):
        await control.flush_cache()


async def waits(server: Loaded) -> asyncio.Task[dict[str, Any]]:
    """Return a request for ids that waits in the paused `server`."""
    server.pause()
    waiting = asyncio.create_task(asyncio.to_thread(generate, server.url, 4))
    while not server.running:  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    return waiting


async def test_a_busy_server_is_idle_after_its_requests_are_aborted():
    with served() as (server, control):
        server.score = lambda _prompt, ids: [-1.0] * len(ids)
        waiting = await waits(server)
        await control.settle()
        assert (await waiting)["finish_reason"]["type"] == "abort"


async def test_weights_wait_for_requests_of_others(model: Qwen3ForCausalLM, tmp_path: Path):
    flushed: list[bool] = []

    def flush(plain: Callable[[], bool]) -> bool:
        flushed.append(plain())
        return flushed[-1]

    with served() as (server, control):
        server.flush_cache = partial(flush, server.flush_cache)
        others = await waits(server)
        syncing = asyncio.create_task(sender_of(Direct(model), control, tmp_path, own=False).send("0"))
        while not flushed:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        assert not flushed[0]
        server.resume()
        await syncing
        assert len((await others)["output_token_logprobs"]) == 4


class Shared(Direct):
    """Weights whose handles the machine refuses, or that have none."""

    refused = True

    async def call(self, name: str, *arguments: Any) -> Any:
        if name == "share" and self.refused:
            raise EngineError("CUDA IPC")
        return await super().call(name, *arguments)


async def test_checkpoint_is_sent_once_handles_have_failed(
    model: Qwen3ForCausalLM, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    with served() as (server, control):
        sender = sender_of(Shared(model), control, tmp_path)
        await sender.send("0")
        await sender.send("1")
        assert server.weights == [str(tmp_path)] * 2
    assert [str(tmp_path) in record.message for record in caplog.records] == [True]


async def test_weights_without_handles_go_as_a_checkpoint(
    model: Qwen3ForCausalLM, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    with served() as (server, control):
        await sender_of(Direct(model), control, tmp_path).send("0")
        assert server.weights == [str(tmp_path)]
    assert not caplog.records


async def test_engine_that_takes_no_weights_leaves_handles_in_use(
    model: Qwen3ForCausalLM, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    with served() as (server, control):
        sender = sender_of(Shared(model), control, tmp_path)
        server.tamper = lambda weights: weights["nothing"]  # pyright: ignore[reportAttributeAccessIssue]
        with pytest.raises(EngineError, match=str(tmp_path)):
            await sender.send("0")
        assert "CUDA IPC" not in caplog.text
        server.tamper = untouched
        await sender.send("1")
    assert "CUDA IPC" in caplog.text  # handles were tried again


@pytest.mark.parametrize("most", [1, 100, 4096, 1 << 30])
def test_buckets_hold_every_weight_once_and_in_order(model: Qwen3ForCausalLM, most: int):
    weights = list(model.state_dict().items())
    made = list(buckets(weights, most))
    assert [name for bucket in made for name, _ in bucket] == [name for name, _ in weights]
    assert all(len(bucket) == 1 or sum(2 * tensor.numel() for _, tensor in bucket) <= most for bucket in made)


SWAPPED = {LAYER.format(0): LAYER.format(1), LAYER.format(1): LAYER.format(0)}


Sync = Callable[[], Awaitable[Mapping[str, float]]]


@asynccontextmanager
async def syncing(
    checkpoint: Path, folder: Path, kind: type[Control] = SglangControl, *, exact: bool = True, **trainer: Any
) -> AsyncGenerator[tuple[Loaded, Near, Sync]]:
    """Yield a server, a rank, and what sends its weights as they are, checked."""
    near = Near(make_run(folder / "run", checkpoint, **trainer))
    with served(kind=kind) as (server, _):
        mine = Server(control=kind, url=server.url, context_tokens=4096, folder=folder, own=exact)
        async with ServedEngine(near, mine) as engine:
            yield server, near, lambda: engine.publish(str(len(server.weights)))


def frozen(server: Loaded) -> Tamper:
    first = dict(server.state)
    return lambda _weights: dict(first)


def stale(server: Loaded) -> Tamper:
    first = server.state[LAYER.format(1)]
    return lambda weights: {**weights, LAYER.format(1): first}


def swapped(server: Loaded) -> Tamper:
    return lambda weights: {SWAPPED.get(name, name): weight for name, weight in weights.items()}


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("sick", [frozen, stale, swapped])
@pytest.mark.parametrize("kind", CONTROLS)
async def test_sick_weights_stop_the_next_sync(
    checkpoint: Path, tmp_path: Path, kind: type[Control], sick: Callable[[Loaded], Tamper], exact: bool
):
    async with syncing(checkpoint, tmp_path, kind, exact=exact) as (server, near, sync):
        await sync()
        update(near)
        assert (await sync())[METRIC] > 0
        server.tamper = sick(server)
        if sick is not swapped:  # places are changed without a change of the trainer's: see the logprobs below
            update(near)
        if sick is stale and not exact:  # an engine that quantises may keep a tensor
            await sync()
            return
        with pytest.raises(EngineError, match="weights"):
            await sync()


@pytest.mark.parametrize("sick", ["adapter", "base"])
async def test_adapters_that_do_not_arrive_stop_the_next_sync(checkpoint: Path, tmp_path: Path, sick: str):
    async with syncing(checkpoint, tmp_path, lora_rank=4) as (server, near, sync):
        await sync()
        base = dict(server.state)
        if sick == "base":  # an engine that serves the base model again, after steps that arrived
            update(near)
            assert (await sync())[METRIC] > 0
        update(near)
        server.tamper = lambda _weights: dict(base)
        with pytest.raises(EngineError, match="weights"):
            await sync()


@pytest.mark.parametrize(("rank", "steps"), [(4, 40), pytest.param(None, 80, marks=pytest.mark.slow)])
async def test_healthy_run_is_never_stopped(checkpoint: Path, tmp_path: Path, rank: int | None, steps: int):
    """Syncs of an optimizer at two learning rates, every twentieth without signal; the embeddings are tied."""
    async with syncing(checkpoint, tmp_path, lora_rank=rank) as (_, near, sync):
        policy = near.rank.model
        optimizer = torch.optim.AdamW([one for one in policy.parameters() if one.requires_grad], weight_decay=0.0)
        counts: list[float] = []
        for step in range(steps):
            for group in optimizer.param_groups:
                group["lr"] = (1e-6, 4e-5)[2 * step // steps]
            if step % 20:
                loss = policy(input_ids=torch.randint(5, 80, (1, 8)), labels=torch.randint(5, 80, (1, 8))).loss
                loss.backward()
                optimizer.step()
            optimizer.zero_grad()
            counts.append((await sync()).get(METRIC, 0.0))
    assert not any(counts[::20])
    assert max(counts[: steps // 2]) > 0
    assert min(count for step, count in enumerate(counts) if step > steps // 2 and step % 20) > 0


def base_weights(weights: Weights) -> Tamper:
    return lambda _weights: dict(weights)


@pytest.mark.parametrize("sick", ["swap", "base", "adapter"])
async def test_logprobs_stop_what_checksums_do_not_show(
    checkpoint: Path, tmp_path: Path, model: Qwen3ForCausalLM, sick: str
):
    """An engine without checksums that computes with other weights stops the run in its first step."""
    run = make_run(tmp_path / "run", checkpoint, max_logprob_difference=0.01)
    near = Near(run)
    update(near, 0.2 if sick == "base" else 0.05)
    wrong = {name: weight.clone() for name, weight in near.rank.model.state_dict().items() if name != "lm_head.weight"}
    near.rank.model.load_state_dict(model.state_dict())
    with served() as (server, _):
        server.shows = False
        server.tamper = swapped(server) if sick == "swap" else base_weights(wrong)
        mine = Server(url=server.url, context_tokens=4096, folder=tmp_path / "weights")
        with pytest.raises(EngineError, match="logprobs"):
            await near.train(run, ServedEngine(near, mine), Player(run.config, by_row))
    assert "logprobs" in summary(run)["error"]
    assert not (run.folder / "metrics.jsonl").exists()  # nothing trained


def test_cache_is_freed_before_the_engine_takes_its_memory(model: Qwen3ForCausalLM, monkeypatch: pytest.MonkeyPatch):
    freed: list[bool] = []
    for frees in (True, False):
        monkeypatch.setattr(torch.cuda, "empty_cache", partial(freed.append, frees))
        SharedWeights(model, frees=frees).take()
    assert freed == [True]


def test_kept_weights_stay_those_that_were_taken(trained: Qwen3ForCausalLM, tmp_path: Path):
    kept = SharedWeights(trained, keep=True)
    kept.take()
    before = kept.fingerprints()
    with torch.no_grad():
        for weight in trained.parameters():
            weight.add_(1.0)
    kept.write(tmp_path)
    written = fingerprints(load_file(tmp_path / "model.safetensors").items())
    assert kept.fingerprints() == before == {**written, "lm_head.weight": before["lm_head.weight"]}
    kept.take()
    assert kept.fingerprints() == fingerprints(trained.state_dict().items()) != before


def test_one_changed_bit_changes_its_fingerprint(model: Qwen3ForCausalLM):
    weights = {name: weight.to(torch.bfloat16).clone() for name, weight in model.state_dict().items()}
    before = fingerprints(weights.items())
    assert before == fingerprints(weights.items())
    for name, weight in weights.items():
        if name == "lm_head.weight":
            continue
        bits = weight.view(torch.int16).view(-1)
        bits[-1] ^= 1
        changed = fingerprints(weights.items())
        assert {each for each in before if before[each] != changed[each]} == {name}
        bits[-1] ^= 1
