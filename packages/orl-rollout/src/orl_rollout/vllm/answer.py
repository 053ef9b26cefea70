"""Read an answer of vLLM to POST /inference/v1/generate: a Generation under law L1, or an error.

Pure: it knows no transport and no retries. Missing, short, non-finite and misaligned values are errors of the engine.
"""

from __future__ import annotations

import msgspec
from msgspec import Struct
from orl_core.errors import EngineAnswerError
from orl_core.trajectory import FinishReason, Generation

from orl_rollout.engine_connection import LONGEST_MESSAGE

NOT_FINITE = -9998.0  # vLLM writes NaN and negative infinity as -9999


class _Logprob(Struct, frozen=True, kw_only=True):
    token_id: int
    logprob: float


class _Logprobs(Struct, frozen=True, kw_only=True):
    content: list[_Logprob] | None = None


class _Span(Struct, frozen=True, kw_only=True):
    version: str


class _Choice(Struct, frozen=True, kw_only=True):
    finish_reason: FinishReason
    token_ids: list[int] | None = None
    logprobs: _Logprobs | None = None
    weight_versions: list[_Span] | None = None


class _PromptDetails(Struct, frozen=True, kw_only=True):
    cached_tokens: int | None = None


class _Usage(Struct, frozen=True, kw_only=True):
    prompt_tokens_details: _PromptDetails | None = None


class _Reply(Struct, frozen=True, kw_only=True):
    choices: tuple[_Choice]
    usage: _Usage | None = None


_REPLY = msgspec.json.Decoder(_Reply)


def read_generation(answer: bytes, seconds: float) -> Generation:
    """Return the generation in the body of a 200. `seconds` is its duration.

    Its `weight_version` is the oldest that sampled an id of it. Its `cached_tokens` are 0 unless the server runs with
    `--enable-prompt-tokens-details`.

    Raises:
        EngineAnswerError: the body is not vLLM's, or its ids and logprobs cannot be trusted.
    """
    try:
        reply = _REPLY.decode(answer)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise EngineAnswerError(f"reading vLLM's answer: {str(exc)[:LONGEST_MESSAGE]}") from exc
    (choice,) = reply.choices
    ids, scored = choice.token_ids or [], (choice.logprobs and choice.logprobs.content) or []
    if not ids and choice.finish_reason != "abort":
        raise EngineAnswerError(f"vLLM returned no id and the finish reason `{choice.finish_reason}`")
    if [one.token_id for one in scored] != ids:
        raise EngineAnswerError(f"vLLM returned {len(ids)} ids, and {len(scored)} logprobs that are not all of these")
    for place, one in enumerate(scored):
        if one.logprob <= NOT_FINITE:
            raise EngineAnswerError(f"vLLM returned a logprob that is not finite for the id {one.token_id} at {place}")
    details = reply.usage and reply.usage.prompt_tokens_details
    return Generation(
        token_ids=tuple(ids),
        logprobs=tuple(one.logprob for one in scored),
        finish_reason=choice.finish_reason,
        weight_version=choice.weight_versions[0].version if choice.weight_versions else "",
        cached_tokens=(details and details.cached_tokens) or 0,
        seconds=seconds,
    )
