"""SGLang's native HTTP interface as an Engine: `input_ids` in, sampled ids with their own logprobs out.

It knows one endpoint, POST /generate of SGLang 0.5 (or of its router), and no messages, environments or trainers. A
trainer's own fields (a LoRA path, routed-expert replay, an API key) come in as `payload`.

By law L1, an answer that cannot be trusted is an error of the engine (`answer`), never repaired. By law L5, only the
new ids of a TokenBuffer are encoded. Retries and deadlines are those of `Connection`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from orl_core.errors import EngineRefused
from orl_core.trajectory import Generation

from orl_rollout.engine_connection import EngineClient, body_of, fitted
from orl_rollout.sglang.answer import ASKED, read_generation

ROUTING_KEY = "X-SMG-Routing-Key"  # SGLang's router sends equal keys to the same worker
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
        answer = await self.connection.ask("POST", "/generate", most, body, {ROUTING_KEY: key})
        return read_generation(answer, time.monotonic() - started, wanted)


def _most(new: int, replayed: int) -> int:
    """Return the most bytes of an answer of `new` ids that also replays `replayed` ids of the context."""
    return min(MOST_BYTES, ANSWER_BYTES + TOKEN_BYTES * new + REPLAY_BYTES * replayed)
