"""What SGLang 0.5.12 takes and gives on POST /generate, for the stand-in: pure functions, and the damage of a `Fault`.

It must not know the engine client, so that the two can disagree, nor HTTP and time, which belong to `SglangServer`.
"""

from __future__ import annotations

import base64
import uuid
from array import array
from bisect import bisect
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any

import msgspec
from msgspec import Struct, field

DEFAULT_MAX_NEW_TOKENS = 128

# Names that SGLang accepts under `sampling_params`; any other is a 500, as there.
_PARAMETERS = frozenset({
    "max_new_tokens", "min_new_tokens", "temperature", "top_p", "top_k", "min_p", "frequency_penalty", "stop",
    "presence_penalty", "repetition_penalty", "stop_token_ids", "stop_regex", "ignore_eos", "n", "no_stop_trim",
    "skip_special_tokens", "spaces_between_special_tokens", "json_schema", "regex", "ebnf", "structural_tag",
    "custom_params", "logit_bias", "sampling_seed", "stream_interval",
})  # fmt: skip


class FaultKind(StrEnum):
    """What goes wrong. STATUS and RESET come before the policy is asked, the others after."""

    STATUS = "status"
    RESET = "reset"
    RESET_MID_BODY = "reset_mid_body"
    HANG = "hang"  # no answer until the request is aborted
    ABORT = "abort"
    MALFORMED = "malformed"
    MISSING_LOGPROBS = "missing_logprobs"
    SHORT_LOGPROBS = "short_logprobs"
    NAN_LOGPROBS = "nan_logprobs"  # null on the wire, as SGLang's JSON writer has it
    MISALIGNED_LOGPROBS = "misaligned_logprobs"
    OUT_OF_VOCABULARY = "out_of_vocabulary"


class Fault(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A fault of the `at`-th /generate request (from 0), or of every one.

    `status` and `message` belong to STATUS; `tokens` is how many ids ABORT and an aborted HANG return.
    """

    kind: FaultKind
    at: int | None = None
    status: int = 500
    message: str = "injected"
    tokens: int = 0


class Refused(Exception):
    """A request that SGLang answers with an error; `body` has its own shape for a 400, the OpenAI-like one else."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.body: dict[str, Any] = {"error": {"message": message}}
        if status != 400:
            self.body = {"object": "error", "message": message, "type": str(status), "param": None, "code": status}


class Request(Struct, frozen=True, kw_only=True):
    """The fields of a request that are understood; SGLang ignores unknown ones silently, and so does the stand-in."""

    input_ids: list[int]
    sampling_params: dict[str, Any] = field(default_factory=dict[str, Any])
    rid: str = field(default_factory=lambda: uuid.uuid4().hex)
    return_logprob: bool = False
    return_routed_experts: bool = False
    stream: bool = False


class Sampled(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the model made of a request: its ids, why it ended, prompt ids found in the cache, seconds taken."""

    ids: list[int]
    finish_reason: dict[str, Any]
    cached: int
    seconds: float


def read_request(body: dict[str, Any], context_tokens: int) -> Request:
    """Check a request as SGLang does.

    Raises:
        Refused: with the status and, where rollout code may read it, the text of the original.
    """
    try:
        request = msgspec.convert(body, Request)
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
        (most is not None and low > most, 400, f"min_new_tokens must be in [0, max_new_tokens({most})], got {low}."),
    )
    for wrong, status, message in checks:
        if wrong:
            raise Refused(status, message)
    return request


def cut(ids: Sequence[int], sampling: Mapping[str, Any], room: int) -> tuple[list[int], dict[str, Any]]:
    """End `ids` where SGLang does: at a stop token, which is included, or at the length, which is looked at first.

    Ids that end by themselves count as ended by the model's end of sequence.
    """
    given = sampling.get("max_new_tokens", DEFAULT_MAX_NEW_TOKENS)
    most = room if given is None else min(given, room)
    stops = () if sampling.get("ignore_eos") else sampling.get("stop_token_ids") or ()
    for count, token in enumerate(ids[: max(most - 1, 0)], 1):
        if token in stops:
            return list(ids[:count]), {"type": "stop", "matched": token}
    if len(ids) >= most:
        return list(ids[:most]), {"type": "length", "length": most}
    return list(ids), {"type": "stop", "matched": ids[-1] if ids else None}


def logprobs_of(prompt: Sequence[int], ids: Sequence[int]) -> list[float]:
    """The logprobs that the stand-in reports for `ids` after `prompt`: fixed by each id and its absolute place."""
    start = len(prompt)
    return [-((7919 * token + 104729 * (start + place)) % 9973 + 1) / 1000 for place, token in enumerate(ids)]


def write_answer(request: Request, sampled: Sampled, weight_version: str, kind: FaultKind | None) -> bytes:
    """The body of a 200, with the damage that `kind` asks for. `text` holds the ids in decimal."""
    prompt, ids = request.input_ids, sampled.ids
    meta: dict[str, Any] = {
        "id": request.rid,
        "finish_reason": sampled.finish_reason,
        "prompt_tokens": len(prompt),
        "completion_tokens": len(ids),
        "cached_tokens": sampled.cached,
        "weight_version": weight_version,
        "e2e_latency": sampled.seconds,
    }
    if request.return_logprob and ids and kind is not FaultKind.MISSING_LOGPROBS:
        meta["output_token_logprobs"] = _triples(logprobs_of(prompt, ids), ids, kind)
        meta["output_token_logprobs_length"] = len(ids)
        meta["input_token_logprobs"] = []
    if kind is FaultKind.OUT_OF_VOCABULARY:
        meta["finish_reason"] = {"type": "stop", "matched": "NaN happened"}
    if request.return_routed_experts:  # one layer, one expert of eight: an int32 for every id but the last
        experts = array("i", [token % 8 for token in (*prompt, *ids)][:-1])
        meta["routed_experts"] = base64.b64encode(experts.tobytes()).decode()
    body = msgspec.json.encode({"text": " ".join(map(str, ids)), "output_ids": ids, "meta_info": meta})
    return body[:-2] if kind is FaultKind.MALFORMED else body


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


class PrefixCache:
    """Sequences in lexicographic order: the longest common prefix with any of them is one with a neighbour."""

    def __init__(self) -> None:
        self._sequences: list[list[int]] = []

    def match(self, ids: list[int]) -> int:
        """How many leading ids some earlier sequence shares with `ids`."""
        at = bisect(self._sequences, ids)
        return max((_common(ids, other) for other in self._sequences[max(at - 1, 0) : at + 1]), default=0)

    def add(self, ids: list[int]) -> None:
        """Remember `ids`; a sequence that it extends is forgotten."""
        at = bisect(self._sequences, ids)
        if at and self._sequences[at - 1] == ids[: len(self._sequences[at - 1])]:
            self._sequences[at - 1] = ids
        else:
            self._sequences.insert(at, ids)


def _common(left: list[int], right: list[int]) -> int:
    size = min(len(left), len(right))
    if left[:size] == right[:size]:
        return size
    return next(place for place in range(size) if left[place] != right[place])
