"""Weights reach a vLLM by handles, in its order of requests; half an update leaves no trace."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from itertools import groupby
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from orl_core.errors import EngineError
from orl_local.engine.engine_plan import EngineChoice
from orl_local.engine.fingerprints import Fingerprinted
from orl_local.engine.served_engine import ServedEngine, Server
from orl_local.engine.vllm_control import VllmControl
from orl_local.engine.weight_check import METRIC
from orl_local.engine.weights import Bucket, SharedWeights, buckets, sglang_handles, vllm_handles, vllm_update
from orl_local.rank import handles_of
from orl_testing.sglang.checksums import fused_checksums
from transformers import Qwen3ForCausalLM

from tests.local.fakes import make_run
from tests.local.stand_in import LAYER, Near, served, update


def data(bucket: Bucket) -> dict[str, bytes]:
    return {name: weight.contiguous().view(-1).view(torch.uint8).numpy().tobytes() for name, weight in bucket}


class Sharing(Near):
    """A rank whose handles have bytes, in several buckets. The `faulty` one cannot be read."""

    faulty: int | None = None

    async def call(self, name: str, *arguments: Any) -> Any:
        if name != "share":
            return await super().call(name, *arguments)
        made = list(buckets(self.rank.model.state_dict().items(), 1 << 16))
        assert len(made) > 2
        (number,) = arguments
        if number == len(made):
            return None
        sent = vllm_update(made[number], {"GPU-0": b"".join(data(made[number]).values())})
        return sent.replace("bfloat16", "float9") if number == self.faulty else sent

    def fused(self) -> dict[str, str]:
        """Return the checksums of an engine with these weights, without the head, which is tied."""
        (sent,) = buckets(self.rank.model.state_dict().items())
        return fused_checksums(data(sent[:-1]))


@asynccontextmanager
async def sharing(
    checkpoint: Path, folder: Path, rank: type[Near] = Sharing
) -> AsyncGenerator[tuple[Any, Any, ServedEngine]]:
    """Yield a vLLM that sleeps, a rank, and the engine of both."""
    near = rank(make_run(folder / "run", checkpoint))
    with served(kind=VllmControl) as (server, control):
        mine = Server(control=VllmControl, url=server.url, context_tokens=4096, folder=folder, releases=True, own=True)
        await control.begin("first")
        async with ServedEngine(near, mine) as engine:
            yield server, near, engine


async def test_vllm_computes_with_the_buckets_that_it_gets(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    async with sharing(checkpoint, tmp_path) as (server, near, engine):
        await engine.publish("0")
        await engine.release()
        update(near)
        assert (await engine.publish("1"))[METRIC] > 0
        assert (server.weights, server.weight_version) == (["handles"] * 2, "1")
        assert server.checksums == (near.fused(),)
        (sent,) = buckets(near.rank.model.state_dict().items())
        first, receive = data(sent)[LAYER.format(1)], server.receive
        monkeypatch.setattr(server, "receive", lambda weights: receive({**weights, LAYER.format(1): first}))
        update(near)
        with pytest.raises(EngineError, match=r"1 of \d+ changed tensors did not change in the engine.*vLLM"):
            await engine.publish("2")


async def test_update_that_fails_in_the_middle_leaves_no_trace(checkpoint: Path, tmp_path: Path):
    async with sharing(checkpoint, tmp_path) as (server, near, engine):
        near.faulty = 1
        await engine.publish("0")
        assert server.weights == ["handles", str(tmp_path)]
        assert server.checksums == (near.fused(),)


LOADED = {
    Sharing: ["init_weight_transfer_engine", "start_weight_update", "update_weights", "finish_weight_update"],
    Near: ["collective_rpc", "update_weight_version"],
}


@pytest.mark.parametrize("rank", LOADED)
async def test_vllm_is_asked_in_this_order(checkpoint: Path, tmp_path: Path, rank: type[Near]):
    loading = ["pause?mode=wait", *LOADED[rank], "reset_prefix_cache"]
    async with sharing(checkpoint, tmp_path, rank) as (server, _, engine):
        await engine.publish("0")
        await engine.release()
        await engine.publish("1")
        await engine.publish("2")
        assert [path for path, _ in groupby(server.controlled)] == [
            "/update_weight_version",
            *(f"/{path}" for path in (*loading, "resume", "collective_rpc")),
            *("/sleep?level=2&mode=abort", "/wake_up?tags=weights"),
            *(f"/{path}" for path in (*loading, "wake_up?tags=kv_cache", "collective_rpc")),
            *(f"/{path}" for path in (*loading, "resume", "collective_rpc")),
        ]


async def test_each_gpu_of_a_vllm_shows_its_part():
    with served(kind=VllmControl) as (server, control):
        server.checksums = {"a": "1", "b": "x"}, {"a": "2", "b": "x"}
        assert await control.checksums() == {"a": "12", "b": "xx"}


@pytest.mark.parametrize(
    ("engine", "tensor_parallel", "apart", "sharded", "handles"),
    [
        ("sglang", 2, True, True, sglang_handles),
        ("vllm", 1, False, False, vllm_handles),
        ("vllm", 1, False, True, None),
        ("vllm", 1, True, False, None),
        ("vllm", 2, False, False, None),
    ],
)
def test_vllm_opens_handles_of_its_own_gpu_alone(
    engine: str, tensor_parallel: int, apart: bool, sharded: bool, handles: object
):
    options = (f"--tensor-parallel-size={tensor_parallel}",)
    choice = EngineChoice(engine=engine, reason="", options=options, gpus=(0, 1), apart=apart)
    assert handles_of(choice, sharded=sharded) is handles


class Strange(torch.Tensor):
    """A tensor that is kept in another way."""


def worker_of_vllm(model: object) -> dict[str, str]:
    """Return the fingerprints that a worker of vLLM with a model shows."""
    worker = Fingerprinted()
    worker.model_runner = SimpleNamespace(get_model=lambda: model)
    return worker.orl_fingerprints()


def test_worker_of_vllm_has_the_fingerprints_of_the_trainer(model: Qwen3ForCausalLM):
    sent = SharedWeights(model).fingerprints()
    del sent["lm_head.weight"]  # tied
    assert worker_of_vllm(model) == {name: f"{one:x}" for name, one in sent.items()}
    eight = torch.ones(3, 2).to(torch.float8_e4m3fn).t()
    weights = {"eight": eight, "strange": torch.ones(2).as_subclass(Strange)}
    assert worker_of_vllm(SimpleNamespace(named_parameters=weights.items)).keys() == {"eight"}
