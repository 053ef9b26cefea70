"""The in-process engine and its sampler: exact logprobs, batches, stops, and too little memory."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar, cast

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from orl_core.errors import EngineError, OrlError
from orl_core.trajectory import Generation
from orl_local.engine.in_process_engine import BATCH_ROWS, InProcessEngine, SamplingRequest, loop_thread, sample
from orl_rollout.edge import interrupt
from transformers import Qwen3ForCausalLM

T = TypeVar("T")
PLAIN: dict[str, Any] = {"temperature": 1.0, "top_p": 1.0, "no_stop_trim": True, "skip_special_tokens": False}


def serve(engine: InProcessEngine, work: Coroutine[Any, Any, T]) -> T:
    with loop_thread() as submit:
        return engine.serve(until=submit(work))


def test_concurrent_requests_share_batches_not_answers(model: Qwen3ForCausalLM):
    engine = InProcessEngine(model)
    engine.weight_version = "7"

    async def ask() -> list[Generation]:
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(
                    engine.generate((number, 3), {**PLAIN, "temperature": 0.0, "max_new_tokens": number + 1}, key="k")
                )
                for number in range(6)
            ]
        return [task.result() for task in tasks]

    together = serve(engine, ask())
    for number, generation in enumerate(together):
        alone = engine.generate((number, 3), {"temperature": 0.0, "max_new_tokens": number + 1}, key="k")
        assert generation.token_ids == serve(engine, alone).token_ids
        assert len(generation.token_ids) == number + 1
        assert generation.finish_reason == "length"
        assert generation.weight_version == "7"


def test_requests_beyond_a_batch_are_answered_by_the_next(model: Qwen3ForCausalLM):
    engine = InProcessEngine(model)

    async def ask() -> list[Generation]:
        asked = [engine.generate((number % 9, 3), {"max_new_tokens": 1}, key="k") for number in range(BATCH_ROWS + 2)]
        async with asyncio.timeout(60):
            return await asyncio.gather(*asked)

    assert [len(generation.token_ids) for generation in serve(engine, ask())] == [1] * (BATCH_ROWS + 2)


def test_a_stop_id_ends_the_answer_and_is_part_of_it(model: Qwen3ForCausalLM):
    engine = InProcessEngine(model)
    greedy = {"temperature": 0.0, "max_new_tokens": 4}
    free = serve(engine, engine.generate((3, 4), greedy, key="k"))
    stopped = serve(engine, engine.generate((3, 4), {**greedy, "stop_token_ids": [free.token_ids[1]]}, key="k"))
    assert stopped.token_ids == free.token_ids[: free.token_ids.index(free.token_ids[1]) + 1]
    assert stopped.finish_reason == "stop"


def test_failed_batch_is_engine_error_and_next_batch_works(model: Qwen3ForCausalLM):
    engine = InProcessEngine(model)

    async def ask() -> list[BaseException | Generation]:
        bad = [engine.generate((10**6,), {"max_new_tokens": 2}, key="k") for _ in range(3)]
        failed = await asyncio.gather(*bad, return_exceptions=True)
        return [*failed, await engine.generate((1,), {"max_new_tokens": 2}, key="k")]

    *failed, good = serve(engine, ask())
    assert [type(fault) for fault in failed] == [EngineError] * 3
    assert "sampling a batch of 3" in str(failed[0])
    assert isinstance(good, Generation)


@pytest.mark.parametrize("sampling", [{"top_k": 5, "max_new_tokens": 1}, {"max_new_tokens": 0}])
def test_a_request_it_cannot_honour_is_refused(model: Qwen3ForCausalLM, sampling: dict[str, Any]):
    engine = InProcessEngine(model)
    with pytest.raises(EngineError, match="in-process engine"):
        serve(engine, engine.generate((1,), sampling, key="k"))


def test_a_cancelled_request_is_not_sampled(model: Qwen3ForCausalLM):
    engine = InProcessEngine(model)

    async def ask() -> Generation:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await engine.generate((10**6,), {"max_new_tokens": 2}, key="k")  # would fail its whole batch
        return await engine.generate((1,), {"max_new_tokens": 2}, key="k")

    assert len(serve(engine, ask()).token_ids) == 2


def test_jobs_run_on_the_thread_of_torch_between_batches(model: Qwen3ForCausalLM):
    engine, done = InProcessEngine(model), list[str]()

    async def ask() -> str:
        asked = asyncio.create_task(engine.generate((1, 2), {"max_new_tokens": 2}, key="k"))
        left = asyncio.create_task(engine.run(lambda: done.append("left")))
        await asyncio.sleep(0)
        left.cancel()  # who leaves does not take the job along
        with pytest.raises(OrlError, match="no room"):
            await engine.run(lambda: fail(OrlError("no room")))
        with pytest.raises(OrlError, match="bug"):
            await engine.run(lambda: fail(KeyError("x")))
        assert len((await asked).token_ids) == 2
        return await engine.run(lambda: threading.current_thread().name)

    assert serve(engine, ask()) == threading.current_thread().name
    assert done == ["left"]


def fail(fault: Exception) -> None:
    raise fault


def signalled(plain: Callable[..., Any] = interrupt.check) -> Callable[..., Any]:
    def work(*args: Any, **given: Any) -> Any:
        os.kill(os.getpid(), signal.SIGINT)
        return plain(*args, **given)

    return work


@pytest.mark.parametrize("asked", ["sampling", "job"])
def test_signal_ends_what_runs_and_the_course_decides(
    model: Qwen3ForCausalLM, monkeypatch: pytest.MonkeyPatch, asked: str
):
    """A run that is interrupted still saves: only what ran when the signal came is given up."""
    engine = InProcessEngine(model)
    monkeypatch.setattr(model, "generate", signalled(cast("Any", model).generate))

    async def course() -> str:
        if asked == "job":
            with pytest.raises(asyncio.CancelledError):
                await engine.run(signalled())
        else:
            with pytest.raises(TimeoutError):  # it is no fault of the engine: the signal cancels whoever asks
                await asyncio.wait_for(engine.generate((1,), {"max_new_tokens": 10**4}, key="k"), 0.5)
        return await engine.run(lambda: "saved")

    with interrupt.listening(), loop_thread() as submit:
        assert engine.serve(until=submit(course()), check=lambda: None) == "saved"
    with pytest.raises(interrupt.Interrupted), interrupt.listening():  # unless the caller decides otherwise
        serve(engine, engine.generate((1,), {"max_new_tokens": 9}, key="k"))


def test_what_the_work_raises_is_raised_and_the_thread_ends(model: Qwen3ForCausalLM):
    async def broken() -> None:
        raise KeyError("x")

    with pytest.raises(KeyError):
        serve(InProcessEngine(model), broken())
    assert "orl-rollouts" not in [thread.name for thread in threading.enumerate()]


ids = st.lists(st.integers(0, 599), min_size=1, max_size=40).map(tuple)
requests = st.builds(
    SamplingRequest,
    token_ids=ids,
    max_new_tokens=st.integers(1, 6),
    temperature=st.sampled_from([0.0, 0.5, 1.0]),
    top_p=st.sampled_from([0.7, 1.0]),
    stop_ids=st.frozensets(st.integers(0, 599), max_size=200),
)


def scores(model: Qwen3ForCausalLM, request: SamplingRequest, sampled: tuple[int, ...]) -> torch.Tensor:
    """The log-softmax at the request's temperature of a full forward pass, a row for each sampled id."""
    with torch.no_grad():
        logits = model(torch.tensor([request.token_ids + sampled])).logits[0].float()
    return torch.log_softmax(logits / (request.temperature or 1.0), dim=-1)[len(request.token_ids) - 1 : -1]


@settings(max_examples=settings().max_examples // 4)  # batches of up to eight requests
@given(batch=st.lists(requests, min_size=1, max_size=8))
def test_answer_is_exact_within_budget_and_ends_at_its_stop(model: Qwen3ForCausalLM, batch: list[SamplingRequest]):
    answers = sample(model, batch)
    assert len(answers) == len(batch)
    for request, answer in zip(batch, answers, strict=True):
        assert 1 <= len(answer.token_ids) <= request.max_new_tokens
        assert not request.stop_ids & set(answer.token_ids[:-1])
        assert (answer.finish_reason == "stop") == (answer.token_ids[-1] in request.stop_ids)
        assert answer.finish_reason == "stop" or len(answer.token_ids) == request.max_new_tokens
        full = scores(model, request, answer.token_ids)
        own = full.gather(1, torch.tensor(answer.token_ids)[:, None])[:, 0]
        assert torch.allclose(own, torch.tensor(answer.logprobs), atol=1e-4)
        if request.temperature == 0:
            assert torch.allclose(own, full.max(dim=1).values, atol=1e-4)


def test_the_nucleus_limits_what_is_drawn_and_not_its_logprob(model: Qwen3ForCausalLM):
    request = SamplingRequest(token_ids=(5, 6, 7), max_new_tokens=1, top_p=0.5)
    full = scores(model, request, (0,))[0]
    ordered = full.exp().sort(descending=True)
    nucleus = set(ordered.indices[: int((ordered.values.cumsum(0) < 0.5).sum()) + 1].tolist())
    drawn = sample(model, [request] * 200)
    assert {answer.token_ids[0] for answer in drawn} <= nucleus
    assert len(nucleus) < 100
    assert all(answer.logprobs[0] == pytest.approx(full[answer.token_ids[0]].item(), abs=1e-4) for answer in drawn)


def test_draws_follow_the_distribution_not_the_checkpoint(model: Qwen3ForCausalLM):
    torch.manual_seed(0)
    request = SamplingRequest(token_ids=(5, 6, 7), max_new_tokens=1)
    full = scores(model, request, (0,))[0].exp()
    counts = torch.zeros_like(full)
    for answer in sample(model, [request] * 4000):
        counts[answer.token_ids[0]] += 1
    assert (counts / 4000 - full).abs().max() < 0.03
    assert (counts > 0).sum() > 3  # the checkpoint's top_k


def test_the_model_is_left_as_it_was(model: Qwen3ForCausalLM):
    model.train()
    defaults = model.generation_config
    sample(model, [SamplingRequest(token_ids=(1,), max_new_tokens=2)])
    assert model.training
    assert model.generation_config is defaults
    assert all(parameter.grad is None for parameter in model.parameters())


def test_seeded_requests_repeat_in_any_batch(model: Qwen3ForCausalLM):
    group = [SamplingRequest(token_ids=(5, 7), max_new_tokens=8, seed=seed) for seed in range(4)]
    drawn = sample(model, group)
    assert len({answer.token_ids for answer in drawn}) == len(group)
    torch.manual_seed(11)
    others = [SamplingRequest(token_ids=(1, 2, 3), max_new_tokens=3)]
    again = sample(model, [*others, *reversed(group)])[1:]
    assert [answer.token_ids for answer in reversed(again)] == [answer.token_ids for answer in drawn]


@pytest.mark.parametrize("room", [2, 0])
def test_batch_without_memory_is_halved(model: Qwen3ForCausalLM, monkeypatch: pytest.MonkeyPatch, room: int):
    batch = [SamplingRequest(token_ids=(number, 7), max_new_tokens=4, seed=number) for number in range(7)]
    expected = [answer.token_ids for answer in sample(model, batch)]
    plain = cast("Any", model).generate
    sizes: list[int] = []

    def generate(**given: Any) -> Any:
        sizes.append(len(given["input_ids"]))
        if sizes[-1] > room:
            raise torch.OutOfMemoryError("scripted")
        return plain(**given)

    monkeypatch.setattr(model, "generate", generate)
    if room:
        assert [answer.token_ids for answer in sample(model, batch)] == expected
        assert sizes == [7, 3, 1, 2, 4, 2, 2]
    else:
        with pytest.raises(torch.OutOfMemoryError):
            sample(model, batch)
        assert sizes == [7, 3, 1]
