"""A stand-in for vLLM on loopback: the scripted model of SGLang's stand-in behind the wire of vLLM 0.32.

It serves POST /inference/v1/generate and what a client asks before. It must not know the engine client, so that the two
can disagree.
"""

from __future__ import annotations

import math
from typing import Any

import msgspec
from aiohttp import web

from orl_testing.sglang.faults import FaultKind
from orl_testing.sglang.server import SglangServer
from orl_testing.sglang.wire import GenerateRequest, Refused, ServedGeneration

_NAMES = {"max_tokens": "max_new_tokens", "min_tokens": "min_new_tokens", "seed": "sampling_seed"}
_SAME = {
    "temperature", "top_p", "top_k", "min_p", "frequency_penalty", "presence_penalty", "repetition_penalty", "stop",
    "stop_token_ids", "ignore_eos", "skip_special_tokens", "spaces_between_special_tokens", "logit_bias",
}  # fmt: skip
_READ = {"logprobs", "detokenize"}
HOTTEST = 2.0
NOT_FINITE = -9999.0


class VllmServer(SglangServer):
    """A vLLM server with one scripted model; arguments, state and faults are those of `SglangServer`.

    `processed` is whether it reports logprobs of what it samples from, `lists` whether it lists its model; both may be
    set.
    """

    headroom = 0
    processed = True
    lists = True

    def routes(self) -> list[web.RouteDef]:
        """Return every endpoint."""
        return [
            web.post("/inference/v1/generate", self.generated),
            web.get("/v1/models", self._models),
            web.get("/health", self._health),
        ]

    async def generated(self, http: web.Request) -> web.StreamResponse:
        """Answer a request for ids. One that allows few ids is a client's question, which asks no script."""
        body = msgspec.json.decode(await http.read() or b"{}", type=dict[str, Any])
        allowed: list[int] = body.get("sampling_params", {}).get("allowed_token_ids", [])
        if not allowed:
            return await super().generated(http)
        logprob = -math.log(len(allowed)) if self.processed else -6.5
        return web.json_response(_answer(allowed[:1], [{"token_id": allowed[0], "logprob": logprob}], "length"))

    def read(self, body: dict[str, Any]) -> GenerateRequest:
        """Read the body of a request for ids."""
        sampling, ids = body["sampling_params"], body["token_ids"]
        if unknown := sampling.keys() - _NAMES.keys() - _SAME - _READ:
            raise Refused(400, f"Unexpected keyword argument {min(unknown)!r}")
        if sampling.get("temperature", 1.0) > HOTTEST:
            raise Refused(400, f"temperature must be in [0, 2], got {sampling['temperature']}.")
        if len(ids) + sampling["max_tokens"] > self.context_tokens:
            raise Refused(400, f"max_tokens is too large: {sampling['max_tokens']}. {len(ids)} input tokens")
        kept = {str(_NAMES.get(name, name)): value for name, value in sampling.items() if name not in _READ}
        fields = {"rid": body["request_id"]} if "request_id" in body else {}
        return GenerateRequest(
            input_ids=ids, sampling_params=kept, return_logprob=sampling.get("logprobs") is not None, **fields
        )

    def write(self, request: GenerateRequest, sampled: ServedGeneration, kind: FaultKind | None) -> bytes:
        """Return the body of an answer, with the damage that `kind` asks for."""
        ids = [*sampled.token_ids]
        if kind is FaultKind.OUT_OF_VOCABULARY:
            ids[-1] = 1 << 40
        content = [
            {"token_id": token, "logprob": logprob} for token, logprob in zip(ids, sampled.logprobs, strict=True)
        ]
        if kind in (FaultKind.NAN_LOGPROBS, FaultKind.NAN_LITERAL):
            content[-1]["logprob"] = NOT_FINITE
        if kind is FaultKind.MISALIGNED_LOGPROBS:
            content[-1]["token_id"] += 1
        if kind is FaultKind.SHORT_LOGPROBS:
            content.pop()
        shown = request.return_logprob and kind is not FaultKind.MISSING_LOGPROBS
        answer = _answer(ids, content if shown else None, sampled.finish_reason["type"])
        answer["choices"][0]["weight_versions"] = [
            {"version": sampled.weight_version, "start": 0, "end": len(ids)}
        ] * bool(ids)
        answer["usage"] = {"prompt_tokens_details": {"cached_tokens": sampled.cached}}
        body = msgspec.json.encode(answer)
        return body[:-2] if kind is FaultKind.MALFORMED else body

    async def _models(self, http: web.Request) -> web.Response:
        model = {
            "id": "m",
            "object": "model",
            "owned_by": "vllm",
            "root": "stand-in",
            "max_model_len": self.context_tokens,
        }
        return web.json_response({"object": "list", "data": [model] * self.lists})

    async def _health(self, http: web.Request) -> web.Response:
        return web.Response()


def _answer(ids: list[int], content: list[dict[str, Any]] | None, finish: str) -> dict[str, Any]:
    choice = {"index": 0, "token_ids": ids, "finish_reason": finish, "stop_reason": None}
    return {
        "request_id": "r",
        "choices": [{**choice, "logprobs": content if content is None else {"content": content}}],
    }
