"""SGLang's native HTTP interface as an Engine: `input_ids` in, sampled ids with their own logprobs out.

It knows one endpoint, POST /generate of SGLang 0.5 (or of its router), and no messages, environments or trainers. A
trainer's own fields (a LoRA path, routed-expert replay, an API key) come in as `payload`.

By law L1, an answer that cannot be trusted is an error of the engine, never repaired: ids come with the logprob triples
and as `output_ids`, and both must be equal. By law L5, only the new ids of a TokenBuffer are encoded. Retries and
deadlines are those of `EngineClient`.
"""

from __future__ import annotations

import re
import time
from collections.abc import Collection, Mapping, Sequence
from itertools import zip_longest
from typing import Any

import msgspec
from msgspec import Struct
from orl_core.errors import EngineAnswerError, EngineRefused
from orl_core.trajectory import FinishReason, Generation

from orl_rollout.engine_connection import LONGEST_MESSAGE, EngineClient, body_of, fitted

ROUTING_KEY = "X-SMG-Routing-Key"  # SGLang's router sends equal keys to the same worker
HEADROOM_TOKENS = 7  # SGLang's scheduler refuses a prompt that leaves less of the context, for any max_new_tokens
# Most bytes of an answer: without its ids, for each new id, and for each id of the context in a request for replay
# (the routing of a mixture of experts takes kilobytes for each id).
ANSWER_BYTES = 1 << 22
TOKEN_BYTES = 512
REPLAY_BYTES = 1 << 14
# Of any answer: 58 layers with 8 experts for each of 128k ids take 310 MiB in base64.
MOST_BYTES = 384 << 20

# The fields that a request can ask for, and the names under which SGLang may return them.
ASKED = {
    "return_routed_experts": ("routed_experts",),
    "return_indexer_topk": ("indexer_topk",),
    "return_top_p_token_ids": ("top_p_token_ids", "top_p_kept_token_ids"),
}

# SamplingParams of SGLang, which answers 500 to any other name. `n` is left out: one request is one generation.
SAMPLING_PARAMETERS = frozenset({
    "max_new_tokens", "min_new_tokens", "temperature", "top_p", "top_k", "min_p", "frequency_penalty",
    "presence_penalty", "repetition_penalty", "stop", "stop_token_ids", "stop_regex", "ignore_eos",
    "skip_special_tokens", "spaces_between_special_tokens", "no_stop_trim", "json_schema", "regex", "ebnf",
    "structural_tag", "custom_params", "logit_bias", "sampling_seed", "stream_interval",
})  # fmt: skip


class SglangEngine(EngineClient):
    """An SGLang server or router at `url`, used as `async with`; one object per event loop."""

    async def generate(self, ids: Sequence[int], sampling: Mapping[str, Any], *, key: str) -> Generation:
        """Sample one continuation of `ids`. The `seconds` of the answer include all attempts and pauses.

        Parameters that are None are not sent. An abort before the first id is an empty Generation. So is a context that
        is full: its `finish_reason` is "length", and nothing is sent.

        Raises:
            EngineError: a parameter SGLang does not know, a refusal, no answer in time, or an answer whose ids and
                logprobs cannot be trusted, or that lacks a requested field.
        """
        started = time.monotonic()
        # The caller's parameters replace those that keep tokens exact.
        exact: dict[str, Any] = {"no_stop_trim": True, "skip_special_tokens": False}
        params = exact | fitted(sampling, SAMPLING_PARAMETERS, self.context_tokens - len(ids))
        if not ids:
            raise EngineRefused("there is no id to continue")
        if len(ids) > self.context_tokens - HEADROOM_TOKENS:
            return Generation(token_ids=(), logprobs=(), finish_reason="length")
        body = body_of({**self.payload, "sampling_params": params, "return_logprob": True}, "input_ids", ids)
        fields: dict[str, Any] = {**self.payload, **(params.get("custom_params") or {})}
        wanted = [name for name in ASKED if fields.get(name)]
        most = _most(params["max_new_tokens"], self.context_tokens if wanted else 0)
        answer = await self.ask("POST", "/generate", most, body, {ROUTING_KEY: key})
        return read_generation(answer, time.monotonic() - started, wanted)


def _most(new: int, replayed: int) -> int:
    """Return the most bytes of an answer of `new` ids that also replays `replayed` ids of the context."""
    return min(MOST_BYTES, ANSWER_BYTES + TOKEN_BYTES * new + REPLAY_BYTES * replayed)


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
    finish, ids = reply.meta_info.finish_reason, reply.output_ids or []
    if finish.matched == _OUT_OF_VOCABULARY:
        raise EngineAnswerError("SGLang sampled an id outside the vocabulary (NaN in the logits)")
    triples = reply.meta_info.output_token_logprobs or []
    if not triples and not ids and finish.type != "abort":
        raise EngineAnswerError(f"SGLang returned no id and the finish reason `{finish.type}`")
    tokens = [token for _, token, _ in triples]
    if tokens != ids:
        pairs = enumerate(zip_longest(ids, tokens))
        place, sampled, other = next((place, one, two) for place, (one, two) in pairs if one != two)
        raise EngineAnswerError(
            f"SGLang returned {len(ids)} ids and {len(tokens)} logprobs: the id {sampled} with the logprob of the id "
            f"{other} at place {place}"
        )
    logprobs: list[Any] = [logprob for logprob, _, _ in triples]
    if None in logprobs:
        place = logprobs.index(None)
        raise EngineAnswerError(f"SGLang returned no logprob for the id {ids[place]} at place {place}")
    return tuple(ids), tuple(logprobs)
