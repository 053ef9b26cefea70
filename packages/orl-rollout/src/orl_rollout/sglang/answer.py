"""Read an answer of SGLang to POST /generate: a Generation under law L1, or an error that says what is wrong.

Pure: it knows no transport and no retries. The ids come from the logprob triples and are compared with `output_ids`. A
missing, short, non-finite or misaligned value is an error of the engine, never repaired.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any

import msgspec
from msgspec import Struct
from orl_core.errors import EngineAnswerError
from orl_core.trajectory import FinishReason, Generation

from orl_rollout.engine_connection import LONGEST_MESSAGE

# The fields that a request can ask for, and the names under which SGLang may return them.
ASKED = {
    "return_routed_experts": ("routed_experts",),
    "return_indexer_topk": ("indexer_topk",),
    "return_top_p_token_ids": ("top_p_token_ids", "top_p_kept_token_ids"),
}


class _FinishReason(Struct, frozen=True, kw_only=True):
    type: FinishReason
    matched: Any = None


class _Replayed(Struct, frozen=True, kw_only=True):
    """Fields that a trainer replays: routed experts, sparse attention, the nucleus of top-p, speculation's counts."""

    routed_experts: Any = None
    routed_experts_start_len: int | None = None
    indexer_topk: Any = None
    indexer_topk_num_layers: int | None = None
    top_p_token_ids: Any = None
    top_p_token_offsets: Any = None
    top_p_kept_token_ids: Any = None
    top_p_kept_token_offsets: Any = None
    spec_accept_token_num: int | None = None
    spec_draft_token_num: int | None = None
    spec_verify_ct: int | None = None


class _MetaInfo(_Replayed, frozen=True, kw_only=True):
    finish_reason: _FinishReason
    output_token_logprobs: list[tuple[float | None, int, str | None]] | None = None
    weight_version: str | int | None = None
    cached_tokens: int = 0


class _Reply(Struct, frozen=True, kw_only=True):
    meta_info: _MetaInfo
    output_ids: list[int] | None = None


_REPLY = msgspec.json.Decoder(_Reply)
_OUT_OF_VOCABULARY = "NaN happened"  # SGLang replaced an id outside the vocabulary: what it returned was not sampled
_NOT_JSON = re.compile(rb"[\[:,]\s*(-?(?:NaN|Infinity))\b")  # Python's json writes these numbers, JSON has none


def read_generation(answer: bytes, seconds: float, wanted: Collection[str] = ()) -> Generation:
    """Return the generation in the body of a 200. `seconds` is its duration, `wanted` are names of ASKED.

    Raises:
        EngineAnswerError: the body is not SGLang's, its ids and logprobs cannot be trusted, or a part is missing.
    """
    try:
        reply = _REPLY.decode(answer)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        match = _NOT_JSON.search(answer)
        what = f"{match[1].decode()} among its numbers, which are not finite" if match else str(exc)[:LONGEST_MESSAGE]
        raise EngineAnswerError(f"reading SGLang's answer: {what}") from exc
    meta = reply.meta_info
    ids, logprobs = _aligned(reply)
    extras = {name: value for name in _Replayed.__struct_fields__ if (value := getattr(meta, name)) is not None}
    for name in wanted if ids else ():
        if not extras.keys() & ASKED[name]:
            raise EngineAnswerError(
                f"SGLang returned no `{ASKED[name][0]}`, which was asked for (`{name}`). "
                "Update SGLang and its router, or switch off the trainer's option that asks for it"
            )
    return Generation(
        token_ids=ids,
        logprobs=logprobs,
        finish_reason=meta.finish_reason.type,
        weight_version="" if meta.weight_version is None else str(meta.weight_version),
        cached_tokens=meta.cached_tokens,
        seconds=seconds,
        extras=extras,
    )


def _aligned(reply: _Reply) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """Return the ids and their logprobs, after all checks that need the whole answer."""
    finish, triples = reply.meta_info.finish_reason, reply.meta_info.output_token_logprobs
    if finish.matched == _OUT_OF_VOCABULARY:
        raise EngineAnswerError("SGLang sampled an id outside the vocabulary (NaN in the logits)")
    if not triples and not reply.output_ids:
        if finish.type != "abort":
            raise EngineAnswerError(f"SGLang returned no id and the finish reason `{finish.type}`")
        return (), ()
    if triples is None or reply.output_ids is None:
        raise EngineAnswerError(f"SGLang returned no {'output_token_logprobs' if triples is None else 'output_ids'}")
    if len(triples) != len(reply.output_ids):
        raise EngineAnswerError(f"SGLang returned {len(reply.output_ids)} ids and {len(triples)} logprobs")
    logprobs, tokens, _ = zip(*triples, strict=True)
    if tokens != tuple(reply.output_ids):
        place = next(place for place, token in enumerate(tokens) if token != reply.output_ids[place])
        sampled = reply.output_ids[place]
        raise EngineAnswerError(
            f"SGLang returned the id {sampled} with the logprob of the id {tokens[place]} at place {place}"
        )
    if None in logprobs:
        place = logprobs.index(None)
        raise EngineAnswerError(f"SGLang returned no logprob for the id {tokens[place]} at place {place}")
    return tokens, logprobs
