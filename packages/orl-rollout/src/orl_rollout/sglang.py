"""SGLang's native HTTP interface as an Engine: `input_ids` in, sampled ids with their own logprobs out.

It knows one endpoint, POST /generate of SGLang 0.5 (or of its router), and no messages, environments or trainers. What
a trainer adds to every request (a LoRA path, routed-expert replay, an API key) comes in as `payload` and `headers`.

Law L1 shapes it: the ids are taken from the logprob triples and compared with `output_ids`, and whatever is missing,
short, not finite or misaligned is an error of the engine, never repaired. A fault that another attempt may cure is
retried with jitter for a bounded time; a refusal (400) is not. Cancelling `generate` closes its connection, which is
what makes SGLang, also behind a router, abort the request.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from io import BytesIO
from types import MappingProxyType, TracebackType
from typing import Any, NoReturn, Self

import aiohttp
import msgspec
from msgspec import Struct
from orl_core.errors import EngineError, boundary
from orl_core.trajectory import FinishReason, Generation
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type, wait_random_exponential

ROUTING_KEY = "X-SMG-Routing-Key"  # SGLang's router sends equal keys to the same worker
CONNECT_SECONDS = 10.0
KEEPALIVE_SECONDS = 4.0  # below the 5 s after which SGLang's own server closes an idle connection
FIRST_PAUSE_SECONDS = 0.1  # the upper bound of the first pause between attempts; it doubles up to the longest
LONGEST_PAUSE_SECONDS = 8.0

# SamplingParams of SGLang, which answers 500 to any other name. `n` is left out: one request is one generation.
SAMPLING_PARAMETERS = frozenset({
    "max_new_tokens", "min_new_tokens", "temperature", "top_p", "top_k", "min_p", "frequency_penalty",
    "presence_penalty", "repetition_penalty", "stop", "stop_token_ids", "stop_regex", "ignore_eos",
    "skip_special_tokens", "spaces_between_special_tokens", "no_stop_trim", "json_schema", "regex", "ebnf",
    "structural_tag", "custom_params", "logit_bias", "sampling_seed", "stream_interval",
})  # fmt: skip

# What a trainer replays: the routing of a mixture of experts, sparse attention's choices, the nucleus of top-p.
REPLAYED = (
    "routed_experts",
    "indexer_topk",
    "top_p_token_ids",
    "top_p_token_offsets",
    "top_p_kept_token_ids",
    "top_p_kept_token_offsets",
)

_NOTHING: Mapping[str, Any] = MappingProxyType({})
_RETRIED = frozenset({408, 429})  # and every 5xx


class _Unavailable(EngineError):
    """A fault that another attempt may cure."""


class SglangEngine:
    """An SGLang server or router at `url`, used as `async with`; one object per event loop.

    Args:
        url: the server's address without a path, such as `http://127.0.0.1:30000`.
        context_tokens: the server's context length in ids; `max_new_tokens` is clamped to what it leaves.
        headers: added to every request; the routing key is set here, from `key`.
        payload: added to every request's body, beside what the engine itself asks for.
        retry_seconds: no attempt begins later than this after the first of a row of failures, pauses aside. The
            default outlives the 60 s for which a router's circuit breaker stays open.
        read_seconds: how long the server may stay silent; a generation is silent until it is complete.
    """

    def __init__(
        self,
        url: str,
        *,
        context_tokens: int,
        headers: Mapping[str, str] = MappingProxyType({}),
        payload: Mapping[str, Any] = _NOTHING,
        retry_seconds: float = 90.0,
        read_seconds: float = 900.0,
    ) -> None:
        self._url = url.rstrip("/") + "/generate"
        self._context_tokens = context_tokens
        self._headers = {**headers, "Content-Type": "application/json"}
        self._payload = dict(payload)
        self._retry_seconds = retry_seconds
        self._read_seconds = read_seconds
        self._client: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        self._client = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEPALIVE_SECONDS),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS, sock_read=self._read_seconds),
            cookie_jar=aiohttp.DummyCookieJar(),
            trust_env=False,
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._client is not None:
            await self._client.close()
            self._client = None

    async def generate(self, ids: Sequence[int], sampling: Mapping[str, Any], *, key: str) -> Generation:
        """Sample one continuation of `ids`; `seconds` of the answer holds all attempts and pauses.

        Parameters that are None are not sent. An abort before the first id is an empty Generation.

        Raises:
            EngineError: a parameter SGLang does not know, no room in the context, a refusal, no answer in time, or an
                answer whose ids and logprobs cannot be trusted.
        """
        started = time.monotonic()
        body = self._body(ids, sampling)
        retrying = AsyncRetrying(
            retry=retry_if_exception_type(_Unavailable),
            wait=wait_random_exponential(multiplier=FIRST_PAUSE_SECONDS, max=LONGEST_PAUSE_SECONDS),
            stop=_Patience(self._retry_seconds),
            retry_error_callback=_give_up,
        )
        answer: bytes = await retrying(self._attempt, body, key)
        return _generation(answer, time.monotonic() - started)

    def _body(self, ids: Sequence[int], sampling: Mapping[str, Any]) -> bytes:
        room = self._context_tokens - len(ids)
        if not ids or room < 1:
            raise EngineError(f"no room to generate: {len(ids)} ids in a context of {self._context_tokens}")
        request = {"input_ids": ids, "sampling_params": _sampling_params(sampling, room), "return_logprob": True}
        with boundary(EngineError, "writing the request"):
            return msgspec.json.encode(self._payload | request)

    async def _attempt(self, body: bytes, key: str) -> bytes:
        """Send the request once; the body of the answer where its status is 200."""
        if self._client is None:
            raise RuntimeError("an SglangEngine is used inside `async with`")
        headers = {**self._headers, ROUTING_KEY: key}
        with boundary(EngineError, self._url):
            try:
                async with self._client.post(
                    self._url, data=BytesIO(body), headers=headers, allow_redirects=False
                ) as response:
                    answer = await response.read()
            except aiohttp.SocketTimeoutError as exc:
                raise EngineError(f"{self._url}: silent for {self._read_seconds:g} s") from exc
            except (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError) as exc:
                raise _Unavailable(f"{self._url}: {type(exc).__name__}: {exc}") from exc
        if response.status == 200:
            return answer
        error = _Unavailable if response.status in _RETRIED or response.status >= 500 else EngineError
        raise error(f"{self._url}: HTTP {response.status}: {_message(answer)}")


class _Patience:
    """Stops the attempts `seconds` after the first of them failed: a long generation is not part of the outage."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._ends: float | None = None

    def __call__(self, state: RetryCallState) -> bool:
        now = time.monotonic()
        if self._ends is None:
            self._ends = now + self._seconds
        return now >= self._ends


def _give_up(state: RetryCallState) -> NoReturn:
    cause = state.outcome.exception() if state.outcome else None
    raise EngineError(f"{cause} (attempt {state.attempt_number}, the last)") from cause


def _sampling_params(sampling: Mapping[str, Any], room: int) -> dict[str, Any]:
    """What is sent: the caller's parameters over the defaults that token exactness asks for, within `room` ids."""
    given = {name: value for name, value in sampling.items() if value is not None}
    if unknown := sorted(given.keys() - SAMPLING_PARAMETERS):
        raise EngineError(f"sampling parameters that SGLang does not take in one generation: {', '.join(unknown)}")
    most = min(given.get("max_new_tokens", room), room)
    if most < 1:
        raise EngineError(f"max_new_tokens is {most}; at least one id has to be asked for")
    if "min_new_tokens" in given:
        given["min_new_tokens"] = min(given["min_new_tokens"], most)
    return {"no_stop_trim": True, "skip_special_tokens": False, **given, "max_new_tokens": most}


# The parts of SGLang's answers that are read. Unknown fields are allowed: the shape is not ours.


class _FinishReason(Struct, frozen=True, kw_only=True):
    type: FinishReason
    matched: Any = None


class _MetaInfo(Struct, frozen=True, kw_only=True):
    finish_reason: _FinishReason
    output_token_logprobs: list[tuple[float | None, int, str | None]] | None = None
    weight_version: str | int | None = None
    cached_tokens: int = 0
    routed_experts: Any = None
    indexer_topk: Any = None
    top_p_token_ids: Any = None
    top_p_token_offsets: Any = None
    top_p_kept_token_ids: Any = None
    top_p_kept_token_offsets: Any = None


class _Reply(Struct, frozen=True, kw_only=True):
    meta_info: _MetaInfo
    output_ids: list[int] | None = None


class _ErrorMessage(Struct, frozen=True, kw_only=True):
    message: str


class _Refusal(Struct, frozen=True, kw_only=True):
    error: _ErrorMessage | None = None
    message: str = ""


_REPLY = msgspec.json.Decoder(_Reply)
_REFUSAL = msgspec.json.Decoder(_Refusal)
_OUT_OF_VOCABULARY = "NaN happened"  # SGLang replaced an id outside the vocabulary: what it returned was not sampled


def _generation(answer: bytes, seconds: float) -> Generation:
    """Read an answer and hold it to law L1."""
    with boundary(EngineError, "reading SGLang's answer"):
        reply = _REPLY.decode(answer)
    meta = reply.meta_info
    ids, logprobs = _aligned(reply)
    return Generation(
        ids=ids,
        logprobs=logprobs,
        finish_reason=meta.finish_reason.type,
        weight_version="" if meta.weight_version is None else str(meta.weight_version),
        cached_tokens=meta.cached_tokens,
        seconds=seconds,
        extras={name: value for name in REPLAYED if (value := getattr(meta, name)) is not None},
    )


def _aligned(reply: _Reply) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """The ids and their logprobs, after every check that only the whole answer allows."""
    finish, triples = reply.meta_info.finish_reason, reply.meta_info.output_token_logprobs
    if finish.matched == _OUT_OF_VOCABULARY:
        raise EngineError("SGLang sampled an id outside the vocabulary (NaN in the logits)")
    if finish.type == "abort" and not triples and not reply.output_ids:
        return (), ()
    if triples is None or reply.output_ids is None:
        raise EngineError(f"SGLang returned no {'output_token_logprobs' if triples is None else 'output_ids'}")
    if len(triples) != len(reply.output_ids):
        raise EngineError(f"SGLang returned {len(reply.output_ids)} ids and {len(triples)} logprobs")
    logprobs: list[float] = []
    for place, ((logprob, token, _), sampled) in enumerate(zip(triples, reply.output_ids, strict=True)):
        if token != sampled:
            raise EngineError(f"SGLang returned the id {sampled} with the logprob of the id {token} at place {place}")
        if logprob is None:
            raise EngineError(f"SGLang returned no logprob for the id {sampled} at place {place}")
        logprobs.append(logprob)
    return tuple(reply.output_ids), tuple(logprobs)


def _message(body: bytes) -> str:
    """The server's own message out of an error's body, or the body itself, on one line of at most 300 characters."""
    text = body.decode("utf-8", "replace")
    try:
        refusal = _REFUSAL.decode(body)
    except msgspec.DecodeError:
        refusal = _Refusal()
    message = refusal.error.message if refusal.error else refusal.message
    return " ".join((message or text).split())[:300] or "no message"
