"""SGLang's native HTTP interface as an Engine: `input_ids` in, sampled ids with their own logprobs out.

It knows one endpoint, POST /generate of SGLang 0.5 (or of its router), and no messages, environments or trainers. A
trainer's own fields (a LoRA path, routed-expert replay, an API key) come in as `payload` and `headers`.

By law L1, an answer that cannot be trusted is an error of the engine (`answer`), never repaired. By law L5, only the
new ids of a TokenBuffer are encoded. Transient faults are retried with backoff and jitter for a bounded time, as an
engine may restart; a refusal (400) is not. A deadline belongs to one attempt and begins when it is sent, and those of
the caller do not count the retries. Connections have no limit, so no request
waits here for another. Cancelling `generate` closes its connection, and SGLang, also behind a router, then aborts the
request.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from io import BytesIO
from types import MappingProxyType
from typing import Any, Self

import aiohttp
import msgspec
from msgspec import Struct
from orl_core.config import RolloutConfig
from orl_core.errors import (
    EngineAnswerError,
    EngineError,
    EngineRefused,
    EngineTimeout,
    EngineUnavailable,
    boundary,
)
from orl_core.trajectory import Generation

from orl_rollout.edge.http import HttpClient, UnsafeAnswer, read, read_error
from orl_rollout.edge.retry import Waiting, backoff, retried
from orl_rollout.loop.clock import postpone
from orl_rollout.loop.token_buffer import TokenBuffer
from orl_rollout.sglang.answer import ASKED, read_generation, read_message

ROUTING_KEY = "X-SMG-Routing-Key"  # SGLang's router sends equal keys to the same worker
KEEPALIVE_SECONDS = 4.0  # below the 5 s after which SGLang's own server closes an idle connection
FIRST_PAUSE_SECONDS = 0.1  # the upper bound of the first pause between attempts; it doubles up to the longest
LONGEST_PAUSE_SECONDS = 8.0
HEADROOM_TOKENS = 7  # SGLang's scheduler refuses a prompt that leaves less of the context, for any max_new_tokens
# Most bytes of an answer: without its ids, for each new id, and for each id of the context in a request for replay
# (the routing of a mixture of experts takes kilobytes for each id).
ANSWER_BYTES = 1 << 22
TOKEN_BYTES = 512
REPLAY_BYTES = 1 << 14
# Of any answer: 58 layers with 8 experts for each of 128k ids take 310 MiB in base64.
MOST_BYTES = 384 << 20

# SamplingParams of SGLang, which answers 500 to any other name. `n` is left out: one request is one generation.
SAMPLING_PARAMETERS = frozenset({
    "max_new_tokens", "min_new_tokens", "temperature", "top_p", "top_k", "min_p", "frequency_penalty",
    "presence_penalty", "repetition_penalty", "stop", "stop_token_ids", "stop_regex", "ignore_eos",
    "skip_special_tokens", "spaces_between_special_tokens", "no_stop_trim", "json_schema", "regex", "ebnf",
    "structural_tag", "custom_params", "logit_bias", "sampling_seed", "stream_interval",
})  # fmt: skip

_NOTHING: Mapping[str, Any] = MappingProxyType({})
_RETRIED = frozenset({408, 429})  # and every 5xx


class Timeouts(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Timeouts of an engine, in seconds. The first three belong to one attempt and begin when it is sent.

    `connect` is for the connection alone. `read` is for the server's silence, and a generation is silent until it is
    complete. `total` is for the whole answer. Retries start at most `retry` after the first failure, and no deadline
    counts them. An engine that has never answered gets `first`: its address may be wrong.
    """

    connect: float = 10.0
    read: float = 900.0
    total: float = 1800.0
    retry: float = RolloutConfig().patience
    first: float = 10.0


_TIMEOUTS = Timeouts()


class SglangEngine:
    """An SGLang server or router at `url`, used as `async with`; one object per event loop.

    Args:
        url: the server's address without a path, such as `http://127.0.0.1:30000`.
        context_tokens: the server's context length in ids; `max_new_tokens` is clamped to what it leaves.
        payload: fields added to every request's body.
        timeouts: the engine's timeouts.
    """

    def __init__(
        self,
        url: str,
        *,
        context_tokens: int,
        payload: Mapping[str, Any] = _NOTHING,
        timeouts: Timeouts = _TIMEOUTS,
    ) -> None:
        self._url = url.rstrip("/") + "/generate"
        self._context_tokens = context_tokens
        self._longest_prompt = context_tokens - HEADROOM_TOKENS
        self._payload = dict(payload)
        self._timeouts = timeouts
        self._client: HttpClient | None = None
        self._answered = False

    async def __aenter__(self) -> Self:
        timeouts = self._timeouts
        timeout = aiohttp.ClientTimeout(total=timeouts.total, sock_connect=timeouts.connect, sock_read=timeouts.read)
        with boundary(EngineError, "the engine's address"):  # which may hold a password: it is not named
            self._client = HttpClient(self._url, idle=KEEPALIVE_SECONDS, timeout=timeout)
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self._client is not None:
            await self._client.close()
            self._client = None

    async def generate(self, ids: Sequence[int], sampling: Mapping[str, Any], *, key: str) -> Generation:
        """Sample one continuation of `ids`. The `seconds` of the answer include all attempts and pauses.

        Parameters that are None are not sent. An abort before the first id is an empty Generation. So is a context that
        is full: its `finish_reason` is "length", and nothing is sent.

        Raises:
            EngineError: a parameter SGLang does not know, a refusal, no answer in time, or an answer whose ids and
                logprobs cannot be trusted, or that lacks a requested field.
        """
        started = time.monotonic()
        params = _sampling_params(sampling, self._context_tokens - len(ids))
        if not ids:
            raise EngineRefused("there is no id to continue")
        if len(ids) > self._longest_prompt:
            return Generation(token_ids=(), logprobs=(), finish_reason="length")
        body = self._body(ids, params)
        fields: dict[str, Any] = {**self._payload, **(params.get("custom_params") or {})}
        wanted = [name for name in ASKED if fields.get(name)]
        most = _most(params["max_new_tokens"], self._context_tokens if wanted else 0)
        answer = await retried(
            lambda: self._attempt(body, key, most),
            EngineUnavailable,
            waiting=Waiting(
                pauses=backoff(FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS), patience=self._patience, postpone=postpone
            ),
        )
        return read_generation(answer, time.monotonic() - started, wanted)

    def _patience(self) -> float:
        """Return for how long retries may start after the first fault, in seconds."""
        return self._timeouts.retry if self._answered else min(self._timeouts.retry, self._timeouts.first)

    def _body(self, ids: Sequence[int], params: dict[str, Any]) -> bytes:
        """Return the request's JSON. The ids come last, as their TokenBuffer has encoded them already."""
        context = ids if isinstance(ids, TokenBuffer) else TokenBuffer(ids)
        with boundary(EngineError, "writing the request"):
            head = msgspec.json.encode({**self._payload, "sampling_params": params, "return_logprob": True})
            return b"".join((head[:-1], b',"input_ids":[', context.json(), b"]}"))

    async def _attempt(self, body: bytes, key: str, most: int) -> bytes:
        """Send the request once. Return the body of the answer if its status is 200."""
        if self._client is None:
            raise RuntimeError("an SglangEngine is used inside `async with`")
        headers = {"Content-Type": "application/json", ROUTING_KEY: key}
        with boundary(EngineError, self._url):
            try:
                data = BytesIO(body)  # aiohttp sends it in parts, so that a long one does not hold up the event loop
                async with self._client.request("POST", self._url, data=data, headers=headers) as response:
                    self._answered = True
                    if response.status != 200:
                        status, message = response.status, read_message(await read_error(response))
                        error = EngineUnavailable if status in _RETRIED or status >= 500 else EngineRefused
                        raise error(f"{self._url}: HTTP {status}: {message}")
                    return await read(response, most)
            except aiohttp.SocketTimeoutError as exc:
                raise EngineTimeout(f"{self._url}: silent for {self._timeouts.read:g} s") from exc
            except (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError) as exc:
                raise EngineUnavailable(f"{self._url}: {type(exc).__name__}: {exc}") from exc
            except TimeoutError as exc:
                raise EngineTimeout(f"{self._url}: no whole answer within {self._timeouts.total:g} s") from exc
            except UnsafeAnswer as exc:
                raise EngineAnswerError(f"{self._url}: {exc}") from exc


def _most(new: int, replayed: int) -> int:
    """Return the most bytes of an answer of `new` ids that also replays `replayed` ids of the context."""
    return min(MOST_BYTES, ANSWER_BYTES + TOKEN_BYTES * new + REPLAY_BYTES * replayed)


def _sampling_params(sampling: Mapping[str, Any], room: int) -> dict[str, Any]:
    """Return the parameters to send, for at most `room` ids. The caller's replace those that keep tokens exact."""
    params = {name: value for name, value in sampling.items() if value is not None}
    if unknown := sorted(params.keys() - SAMPLING_PARAMETERS):
        raise EngineRefused(f"sampling parameters that SGLang does not take in one generation: {', '.join(unknown)}")
    wanted = params.get("max_new_tokens", room)
    if wanted < 1 <= room:
        raise EngineRefused(f"max_new_tokens is {wanted}. Set it to at least 1")
    most = min(wanted, room)
    if "min_new_tokens" in params:
        params["min_new_tokens"] = min(params["min_new_tokens"], most)
    return {"no_stop_trim": True, "skip_special_tokens": False, **params, "max_new_tokens": most}
