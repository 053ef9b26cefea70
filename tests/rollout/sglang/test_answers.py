"""Law L1 at the engine client: what SGLang answers is taken exactly, or refused."""

from __future__ import annotations

from typing import Any

import pytest
from aiohttp import web
from orl_core.errors import EngineError
from orl_rollout.sglang.client import MOST_BYTES, _most

from tests.kit.serving import PROMPT, answered, answering, replying


@pytest.mark.parametrize("logprobs", [None, []])
@pytest.mark.parametrize("ids", [None, []])
async def test_an_abort_before_the_first_id_is_legal_in_every_shape(logprobs: Any, ids: Any) -> None:
    meta = {"finish_reason": {"type": "abort", "message": "Aborted"}, "output_token_logprobs": logprobs}
    generation = await answered(**meta, output_ids=ids)
    assert (generation.token_ids, generation.finish_reason) == ((), "abort")


async def test_error_does_not_repeat_the_answer() -> None:
    with pytest.raises(EngineError) as caught:
        await answered(finish_reason={"type": "x" * 100_000}, output_ids=[])
    assert len(str(caught.value)) < 500


def test_answer_is_bounded_whatever_the_context() -> None:
    assert _most(1_000, 0) < _most(1_000, 1_000) < MOST_BYTES
    assert _most(1_000, 10_000_000) == MOST_BYTES


SHAPES: list[dict[str, Any]] = [
    {"finish_reason": None},
    {"finish_reason": {"type": "error"}},
    {"finish_reason": {"type": "abort"}, "output_token_logprobs": None},
    *(
        {"finish_reason": {"type": reason}, "output_token_logprobs": logprobs, "output_ids": []}
        for reason in ("stop", "length")
        for logprobs in (None, [])
    ),
    {"output_token_logprobs": [[-0.5, 8]]},
    {"output_ids": None},
    {"output_ids": [8.5]},
    {"cached_tokens": None},
    *(
        {"output_token_logprobs": [[logprob, 8, None]]}
        for logprob in (float("nan"), float("inf"), float("-inf"), "-0.5", 1000.0, 0.02, -1e300, -3.5e38, True)
    ),
    *(
        {"output_token_logprobs": [[-0.5, token, None]], "output_ids": [token]}
        for token in (-1, True, 8.0, "8", None, 1 << 80)
    ),
]


@pytest.mark.parametrize("meta", SHAPES, ids=str)
async def test_answer_of_another_shape_is_refused(meta: dict[str, Any]) -> None:
    with pytest.raises(EngineError):
        await answered(**meta)


async def test_text_that_says_nan_is_only_text() -> None:
    async def handler(request: web.Request) -> web.Response:
        reply = await replying()(request)
        return web.Response(body=reply.body.replace(b'"text": ""', b'"text": "[NaN, Infinity]"'))

    async with answering(handler) as engine:
        assert (await engine.generate(PROMPT, {}, key="a")).token_ids == (8,)


@pytest.mark.parametrize("logprob", [0, 0.0, 1e-6, 0.0078, -1e30])
async def test_a_logprob_of_rounded_arithmetic_is_kept(logprob: float) -> None:
    assert (await answered(output_token_logprobs=[[logprob, 8, None]])).logprobs == (logprob,)
