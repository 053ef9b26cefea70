"""SGLang 0.5.12's format of POST /generate, for the stand-in: pure functions, and the damage of a fault.

It must not know the engine client, so that the two can disagree, nor HTTP and time, which belong to `SglangServer`.
"""

from __future__ import annotations

import base64
import uuid
from array import array
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from msgspec import Struct, field

from orl_testing.sglang.faults import FaultKind
from orl_testing.sglang.model import DEFAULT_MAX_NEW_TOKENS, INPUT_HEADROOM

# Names that SGLang accepts under `sampling_params`; any other is a 500, as there.
_PARAMETERS = frozenset({
    "max_new_tokens", "min_new_tokens", "temperature", "top_p", "top_k", "min_p", "frequency_penalty", "stop",
    "presence_penalty", "repetition_penalty", "stop_token_ids", "stop_regex", "ignore_eos", "n", "no_stop_trim",
    "skip_special_tokens", "spaces_between_special_tokens", "json_schema", "regex", "ebnf", "structural_tag",
    "custom_params", "logit_bias", "sampling_seed", "stream_interval",
})  # fmt: skip


class Refused(Exception):
    """A request that SGLang answers with an error; `body` has its own shape for a 400, the OpenAI-like one else."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.body: dict[str, Any] = {"error": {"message": message}}
        if status != 400:
            self.body = {"object": "error", "message": message, "type": str(status), "param": None, "code": status}


class GenerateRequest(Struct, frozen=True, kw_only=True):
    """The fields of a request that are understood; SGLang ignores unknown ones silently, and so does the stand-in."""

    input_ids: list[int]
    sampling_params: dict[str, Any] = field(default_factory=dict[str, Any])
    rid: str = field(default_factory=lambda: uuid.uuid4().hex)
    return_logprob: bool = False
    return_routed_experts: bool = False
    return_indexer_topk: bool = False
    stream: bool = False


class ServedGeneration(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The model's answer to a request: its ids, why it ended, and under which weights it was answered.

    `cached` counts the prompt's ids that the cache held, `seconds` is what it took. `logprobs` are those of the ids.
    """

    token_ids: list[int]
    logprobs: list[float]
    finish_reason: dict[str, Any]
    cached: int
    seconds: float
    weight_version: str


def read_request(body: dict[str, Any], context_tokens: int) -> GenerateRequest:
    """Check a request as SGLang does.

    Raises:
        Refused: with the status and, where rollout code may read it, the text of the original.
    """
    try:
        request = msgspec.convert(body, GenerateRequest)
    except msgspec.ValidationError as exc:
        raise Refused(400, str(exc)) from exc
    sampling, length = request.sampling_params, len(request.input_ids)
    most = sampling.get("max_new_tokens", DEFAULT_MAX_NEW_TOKENS)
    total = length + (most or 0)
    unknown = ", ".join(sorted(sampling.keys() - _PARAMETERS))
    missing = request.stream or sampling.get("n", 1) != 1 or sampling.get("stop") or sampling.get("stop_regex")
    low = sampling.get("min_new_tokens") or 0
    checks = (
        (unknown, 500, f"SamplingParams got an unexpected keyword argument: {unknown}"),
        (missing, 400, "streams, several samples and stop strings are unavailable in the stand-in"),
        (length == 0, 400, "input_ids cannot be empty."),
        (
            length >= context_tokens,
            400,
            f"The input ({length} tokens) is longer than the model's context length ({context_tokens} tokens).",
        ),
        (
            total > context_tokens,
            400,
            f"Requested token count exceeds the model's maximum context length of {context_tokens} tokens. "
            f"You requested a total of {total} tokens.",
        ),
        (
            length >= context_tokens - INPUT_HEADROOM,
            400,
            f"Input length ({length} tokens) exceeds the maximum allowed length ({context_tokens - INPUT_HEADROOM} "
            "tokens). Use a shorter input or enable --allow-auto-truncate.",
        ),
        (most is not None and low > most, 400, f"min_new_tokens must be in [0, max_new_tokens({most})], got {low}."),
    )
    for wrong, status, message in checks:
        if wrong:
            raise Refused(status, message)
    return request


def write_answer(
    request: GenerateRequest,
    sampled: ServedGeneration,
    kind: FaultKind | None,
    decode: Callable[[Sequence[int]], str] | None,
) -> bytes:
    """The body of a 200, with the damage that `kind` asks for."""
    prompt, ids = request.input_ids, sampled.token_ids
    meta: dict[str, Any] = {
        "id": request.rid,
        "finish_reason": sampled.finish_reason,
        "prompt_tokens": len(prompt),
        "completion_tokens": len(ids),
        "cached_tokens": sampled.cached,
        "weight_version": sampled.weight_version,
        "e2e_latency": sampled.seconds,
    }
    if request.return_logprob and ids and kind is not FaultKind.MISSING_LOGPROBS:
        meta["output_token_logprobs"] = _triples(sampled.logprobs, ids, kind)
        meta["output_token_logprobs_length"] = len(ids)
        meta["input_token_logprobs"] = []
    if kind is FaultKind.OUT_OF_VOCABULARY:
        meta["finish_reason"] = {"type": "stop", "matched": "NaN happened"}
    if kind is not FaultKind.NO_REPLAY:
        meta.update(_replayed(request, prompt, ids))
    trimmed = meta["finish_reason"]["type"] == "stop" and not request.sampling_params.get("no_stop_trim")
    text = decode(ids[:-1] if trimmed else ids) if decode else " ".join(map(str, ids))
    body = msgspec.json.encode({"text": text, "output_ids": ids, "meta_info": meta})
    if kind is FaultKind.NAN_LITERAL and ids:
        number = msgspec.json.encode(sampled.logprobs[-1])
        body = body.replace(b"[%s,%d,null]]" % (number, ids[-1]), b"[NaN,%d,null]]" % ids[-1])
    return body[:-2] if kind is FaultKind.MALFORMED else body


def _replayed(request: GenerateRequest, prompt: list[int], ids: list[int]) -> dict[str, Any]:
    """Return data for a trainer's replay, base64 of int32: one layer, and one choice of eight for each id but the last.

    The nucleus of an id is itself and the next one.
    """
    choices = _base64([token % 8 for token in (*prompt, *ids)][:-1])
    extras: dict[str, Any] = {}
    if request.return_routed_experts:
        extras["routed_experts"] = choices
    if request.return_indexer_topk:
        extras |= {"indexer_topk": choices, "indexer_topk_num_layers": 1}
    custom: dict[str, Any] = request.sampling_params.get("custom_params") or {}
    if custom.get("return_top_p_token_ids"):
        extras["top_p_token_ids"] = _base64([kept for token in ids for kept in (token, token + 1)])
        extras["top_p_token_offsets"] = _base64(list(range(0, 2 * len(ids) + 1, 2)))
    return extras


def _base64(numbers: list[int]) -> str:
    return base64.b64encode(array("i", numbers).tobytes()).decode()


def _triples(logprobs: list[float], ids: list[int], kind: FaultKind | None) -> list[tuple[float | None, int, None]]:
    """`output_token_logprobs`: [logprob, id, text], the last of them wrong where `kind` says so."""
    values: list[float | None] = list(logprobs)
    tokens = list(ids)
    if kind is FaultKind.NAN_LOGPROBS:
        values[-1] = None
    if kind is FaultKind.MISALIGNED_LOGPROBS:
        tokens[-1] += 1
    triples = [(value, token, None) for value, token in zip(values, tokens, strict=True)]
    return triples[:-1] if kind is FaultKind.SHORT_LOGPROBS else triples
