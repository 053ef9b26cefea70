"""Weights reach the engine and the canary sees it: the stand-in scores prompts with the checkpoint it was sent."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Generator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from orl_core.errors import EngineAnswerError, EngineError
from orl_testing import Fault, FaultKind, SglangServer
from orl_trl.canary import IDS, canary_ids, check_canary, logprobs_under
from orl_trl.sglang_control import SglangControl
from orl_trl.weight_sync import SharedMemorySync, buckets
from safetensors.torch import load_file
from transformers import Qwen3ForCausalLM


@contextmanager
def served(faults: tuple[Fault, ...] = ()) -> Generator[tuple[SglangServer, SglangControl]]:
    """Serve a stand-in whose logprobs are those of the checkpoint that it was told to load."""
    server = SglangServer(lambda _ids, _sampling: [5], faults=faults)
    started: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = Future()

    def score(ids: list[int]) -> list[float]:
        model = Qwen3ForCausalLM.from_pretrained(server.weights[-1], dtype="float32")
        return [0.0, *logprobs_under(model, ids)]

    async def serve() -> None:
        async with server:
            ended = asyncio.Event()
            started.set_result((asyncio.get_running_loop(), ended))
            await ended.wait()

    server.score = score
    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    loop, ended = started.result(10)
    try:
        yield server, SglangControl(server.url)
    finally:
        loop.call_soon_threadsafe(ended.set)
        thread.join(10)


@pytest.fixture
def trained(model: Qwen3ForCausalLM) -> Qwen3ForCausalLM:
    other = Qwen3ForCausalLM(model.config)
    other.load_state_dict(model.state_dict())
    with torch.no_grad():
        for weight in other.parameters():
            weight.add_(0.02 * torch.randn_like(weight))
    return other


def test_the_canary_passes_after_a_sync_and_fails_before(
    model: Qwen3ForCausalLM, trained: Qwen3ForCausalLM, tmp_path: Path
):
    with served() as (server, control), SharedMemorySync(control, tmp_path) as sync:
        sync(model, "0")
        with pytest.raises(EngineError, match="differ"):
            check_canary(control, trained)
        sync(trained, "1")
        assert check_canary(control, trained) < 0.05
        assert server.weight_version == "1"
        folder = sync.folder
        assert all(weight.dtype == torch.bfloat16 for weight in load_file(folder / "model.safetensors").values())
    assert not folder.exists()


def test_a_logprob_that_is_missing_is_an_error(model: Qwen3ForCausalLM):
    with served() as (server, control):
        for given in ([], [0.0] * (IDS - 1), [0.0] * (IDS - 1) + [float("nan")]):
            server.score = lambda _ids, given=given: given
            with pytest.raises(EngineAnswerError):
                check_canary(control, model)


def test_the_trainer_keeps_its_mode_and_the_ids_are_fixed(model: Qwen3ForCausalLM):
    ids = canary_ids(600)
    assert ids == canary_ids(600)
    assert max(ids) < 600
    model.train()
    found = logprobs_under(model, ids)
    assert model.training
    model.eval()
    assert found == logprobs_under(model, ids)
    assert len(found) == IDS - 1


def test_memory_is_released_and_taken_back():
    with served() as (server, control):
        control.release("weights", "kv_cache")
        assert server.released == {"weights", "kv_cache"}
        with pytest.raises(EngineError, match="released"):
            control.logprobs([1, 2])
        control.resume("weights")
        assert server.released == {"kv_cache"}


def test_a_bucket_reaches_the_engine_with_its_version():
    with served() as (server, control):
        control.update_from_tensors("AAAA", "7")
        assert (server.weights, server.weight_version) == (["AAAA"], "7")


def test_what_the_engine_refuses_is_an_error(model: Qwen3ForCausalLM):
    fault = Fault(kind=FaultKind.STATUS, status=503, message="overloaded")
    with served((fault,)) as (_, control), pytest.raises(EngineError, match="overloaded"):
        check_canary(control, model)
    assert not control.healthy()
    with pytest.raises(EngineError, match="flush_cache"):
        control.flush_cache()


def test_a_full_disk_is_an_error(model: Qwen3ForCausalLM, tmp_path: Path):
    with pytest.raises(EngineError, match="folder"):
        SharedMemorySync(SglangControl("http://127.0.0.1:9"), tmp_path / "absent").__enter__()


@pytest.mark.parametrize("most", [1, 100, 4096, 1 << 30])
def test_buckets_hold_every_weight_once_and_in_order(model: Qwen3ForCausalLM, most: int):
    weights = list(model.state_dict().items())
    made = list(buckets(weights, most))
    assert [name for bucket in made for name, _ in bucket] == [name for name, _ in weights]
    assert all(len(bucket) == 1 or sum(2 * tensor.numel() for _, tensor in bucket) <= most for bucket in made)
