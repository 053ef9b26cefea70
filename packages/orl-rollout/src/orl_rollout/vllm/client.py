"""vLLM as an Engine: `token_ids` in, sampled ids with their own logprobs out.

It knows one endpoint, POST /inference/v1/generate of vLLM 0.32 or later, and no messages, environments or trainers.
SGLang's names of sampling parameters, which the loop uses, become vLLM's. Retries and deadlines are those of
`EngineClient`: while it is paused for new weights, vLLM 0.32 lets requests wait, and 0.33 answers 503.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import msgspec
from msgspec import Struct
from orl_core.errors import EngineAnswerError, EngineRefused
from orl_core.trajectory import FinishReason, Generation

from orl_rollout.engine_connection import LONGEST_MESSAGE, EngineClient, body_of, fitted

NOT_FINITE = -9998.0  # vLLM writes NaN and negative infinity as -9999
PATH = "/inference/v1/generate"
SESSION = "X-Session-ID"  # vLLM and its router send equal ones to the same worker
ANSWER_BYTES = 1 << 22
TOKEN_BYTES = 512
KEYS_KEPT = 1 << 14  # rollouts whose first version is known; more than can run at once

# Names in vLLM of the parameters that one generation may have. Its ids are never trimmed (IGNORED).
NAMES: Mapping[str, str] = {
    "max_new_tokens": "max_tokens",
    "min_new_tokens": "min_tokens",
    "sampling_seed": "seed",
    **{
        name: name
        for name in (
            "temperature", "top_p", "top_k", "min_p", "frequency_penalty", "presence_penalty", "repetition_penalty",
            "stop", "stop_token_ids", "ignore_eos", "skip_special_tokens", "spaces_between_special_tokens",
            "logit_bias",
        )
    },
}  # fmt: skip

IGNORED = frozenset({"no_stop_trim"})

# One allowed id: its processed logprob is that of certainty, whatever the model is.
_PROBE = {"max_tokens": 1, "temperature": 1.0, "allowed_token_ids": [0], "logprobs": 0, "detokenize": False}
_CLOSE = 1e-3
_FLAGS = "Start vLLM 0.32 or later with --enable-scale-out --logprobs-mode processed_logprobs"


class VllmEngine(EngineClient):
    """A vLLM server or router at `url`, used as `async with`; one object per event loop.

    The server must report logprobs of the distribution that it samples from: `--logprobs-mode processed_logprobs`. Its
    first answer shows whether it does.
    """

    _processed = False  # whether its logprobs were checked

    @cached_property
    def _began(self) -> dict[str, int]:
        """The version of the weights that each rollout began with."""
        return {}

    async def generate(self, ids: Sequence[int], sampling: Mapping[str, Any], *, key: str) -> Generation:
        """Sample one continuation of `ids`; see `SglangEngine.generate`.

        Raises:
            EngineError: a parameter vLLM does not take, a refusal, no answer in time, an answer whose ids and logprobs
                cannot be trusted, or older weights than those that the rollout began with.
        """
        started, room = time.monotonic(), self.context_tokens - len(ids)
        params = {"skip_special_tokens": False} | fitted(sampling, IGNORED | NAMES.keys(), room)
        if not ids:
            raise EngineRefused("there is no id to continue")
        if room < 1:
            return Generation(token_ids=(), logprobs=(), finish_reason="length")
        if not self._processed:
            await self._check_logprobs(ids, key)
        renamed = {NAMES[name]: value for name, value in params.items() if name not in IGNORED}
        answer = await self._ask({**renamed, "detokenize": "stop" in params, "logprobs": 0}, ids, key)
        generation = read_generation(answer, time.monotonic() - started)
        self._refuse_older(generation.weight_version, key)
        return generation

    async def _ask(self, params: Mapping[str, Any], ids: Sequence[int], key: str) -> bytes:
        body = body_of({**self.payload, "sampling_params": params}, "token_ids", ids)
        most = ANSWER_BYTES + TOKEN_BYTES * params["max_tokens"]
        return await self.ask("POST", PATH, most, body, {SESSION: key})

    async def _check_logprobs(self, ids: Sequence[int], key: str) -> None:
        """Refuse a server whose logprobs are those before temperature and top_k: vLLM's default."""
        try:
            sampled = read_generation(await self._ask(_PROBE, ids[:1], key), 0.0)
        except EngineRefused as exc:
            raise EngineRefused(f"{exc}. {_FLAGS}") from exc
        if any(abs(logprob) > _CLOSE for logprob in sampled.logprobs):
            raise EngineAnswerError(
                f"vLLM's logprobs are not those of what it samples from: {sampled.logprobs[0]:.3f} instead of 0 for "
                f"the only id that was allowed. {_FLAGS}"
            )
        self._processed = bool(sampled.logprobs)

    def _refuse_older(self, version: str, key: str) -> None:
        """Refuse weights that are older than those of the rollout's first ids: a replica has missed an update."""
        if not version.isdecimal():
            return
        began = self._began.setdefault(key, int(version))
        if int(version) < began:
            raise EngineAnswerError(
                f"vLLM sampled with weights {version}; the rollout began with {began}. Check that every replica "
                "gets new weights"
            )
        if len(self._began) > KEYS_KEPT:
            self._began.pop(next(iter(self._began)))


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
