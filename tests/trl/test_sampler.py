from __future__ import annotations

from typing import Any, cast

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from orl_trl.engine.sampler import SamplingRequest, sample
from transformers import Qwen3ForCausalLM

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
        assert answer.stopped == (answer.token_ids[-1] in request.stop_ids)
        assert answer.stopped or len(answer.token_ids) == request.max_new_tokens
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
