"""A stand-in for vLLM on this machine: the scripted model of SGLang's stand-in behind the wire of vLLM 0.32.

It serves POST /inference/v1/generate, what a client asks before, and what a trainer asks of its development mode. A
handle of weights has their bytes here. It must not know the engine client, so that the two can disagree.
"""

from __future__ import annotations

import base64
import math
import pickle
from functools import cached_property
from typing import Any

import msgspec
from aiohttp import web

from orl_testing.sglang.checksums import fused_checksums
from orl_testing.sglang.faults import FaultKind
from orl_testing.sglang.server import SglangServer
from orl_testing.sglang.wire import GenerateRequest, Refused, ServedGeneration

_NAMES = {"max_tokens": "max_new_tokens", "min_tokens": "min_new_tokens", "seed": "sampling_seed"}
_SAME = {
    "temperature", "top_p", "top_k", "min_p", "frequency_penalty", "presence_penalty", "repetition_penalty", "stop",
    "stop_token_ids", "ignore_eos", "skip_special_tokens", "spaces_between_special_tokens", "logit_bias",
}  # fmt: skip
_EACH = ("name", "tensor_size", "shape", "dtype_name")  # of an update of weights
_READ = {"logprobs", "detokenize"}
HOTTEST = 2.0
NOT_FINITE = -9999.0
ASLEEP = {"weights", "kv_cache"}


class VllmServer(SglangServer):
    """A vLLM server with one scripted model; arguments, state and faults are those of `SglangServer`.

    `processed` is whether it reports logprobs of what it samples from, `lists` whether it lists its model; both may be
    set.
    """

    headroom = 0
    processed = True
    lists = True
    development = True
    pickles = True  # it takes them
    holds = False  # new requests are refused until it is resumed, as by vLLM 0.33
    updating = lost = False  # an update has begun; the weights were dropped

    @cached_property
    def controlled(self) -> list[str]:
        """The paths of a trainer's requests, with their queries."""
        return []

    @cached_property
    def taking(self) -> dict[str, bytes]:
        """The weights of layers that no update has finished."""
        return {}

    def routes(self) -> list[web.RouteDef]:
        """Return every endpoint."""
        plain = [
            web.post("/inference/v1/generate", self.generated),
            web.get("/v1/models", self._models),
            web.get("/health", self._health),
        ]
        names = (
            "pause", "resume", "init_weight_transfer_engine", "start_weight_update", "update_weights",
            "finish_weight_update", "update_weight_version", "collective_rpc", "sleep", "wake_up", "reset_prefix_cache",
        )  # fmt: skip
        return [*plain, *(web.post(f"/{name}", self._controlled) for name in names if self.development)]

    async def generated(self, http: web.Request) -> web.StreamResponse:
        """Answer a request for ids. One that allows few ids is a client's question, which asks no script."""
        body = msgspec.json.decode(await http.read() or b"{}", type=dict[str, Any])
        allowed: list[int] = body.get("sampling_params", {}).get("allowed_token_ids", [])
        if self.holds:
            return web.json_response({"error": {"message": "Generation is paused", "code": 503}}, status=503)
        if self.lost:
            return web.json_response({"error": {"message": "the weights are lost", "code": 500}}, status=500)
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

    async def _controlled(self, http: web.Request) -> web.Response:
        """Answer a request of a trainer, 500 if vLLM raises, 422 if it lacks a field."""
        self.controlled.append(http.path_qs)
        try:
            body = msgspec.json.decode(await http.read() or b"{}", type=dict[str, Any])
            return web.json_response(await getattr(self, f"_{http.path[1:]}")({**http.query, **body}))
        except KeyError as fault:
            return web.json_response({"detail": f"missing: {fault}"}, status=422)
        except RuntimeError as fault:
            return web.json_response({"error": {"message": str(fault)}}, status=500)

    async def _pause(self, body: dict[str, Any]) -> dict[str, Any]:
        self.holds = True
        if body.get("mode", "abort") == "abort":
            self.abort()
        await self.until_running(0)
        self.flush_cache()
        return {"status": "paused"}

    async def _resume(self, _: dict[str, Any]) -> dict[str, Any]:
        self.holds = False
        return {"status": "resumed"}

    async def _init_weight_transfer_engine(self, body: dict[str, Any]) -> dict[str, Any]:
        self.packed = bool(body["init_info"].get("packed"))
        return {"message": "Weight transfer initialized"}

    async def _start_weight_update(self, _: dict[str, Any]) -> dict[str, Any]:
        if self.updating:
            raise RuntimeError("start_weight_update called while a weight update is already active.")
        self.updating = True
        return {"message": "Weight update started"}

    async def _update_weights(self, body: dict[str, Any]) -> dict[str, Any]:
        """Take weights one after the other from the bytes that the handle of the only GPU has. A fault ends an update.

        What came before stays in the layers, for the next one.
        """
        info, updating, self.updating = body["update_info"], self.updating, False
        if not updating or not self.holds or not self.packed or not self.pickles or "weights" in self.released:
            raise RuntimeError("start_weight_update must be called before update_weights.")
        pickled = base64.b64decode(info["ipc_handles_pickled"])
        (flat,), start = pickle.loads(pickled).values(), 0  # noqa: S301 - of a test
        for name, size, _, dtype in zip(*(info[f"{key}s"] for key in _EACH), strict=True):
            if dtype not in ("bfloat16", "int64"):
                raise RuntimeError(f"{dtype} of {name}")
            self.taking[name], start = flat[start : start + size], start + size
        self.updating = True
        return {"message": "Weights updated"}

    async def _finish_weight_update(self, body: dict[str, Any]) -> dict[str, Any]:
        if not self.updating:
            raise RuntimeError("finish_weight_update called without a matching start_weight_update.")
        self.receive(self.taking)
        self.taking.clear()
        self.updating = False
        self.weight_version = body.get("weight_version") or self.weight_version
        return {"message": "Weight update finished"}

    def receive(self, weights: dict[str, bytes]) -> None:
        """Compute with `weights`. A tied head is skipped."""
        self.weights.append("handles")
        self.lost = False
        self.checksums = (fused_checksums({name: one for name, one in weights.items() if name != "lm_head.weight"}),)

    async def _update_weight_version(self, body: dict[str, Any]) -> dict[str, Any]:
        self.weight_version = body["new_version"]
        return {"success": True, "new_version": self.weight_version}

    async def _collective_rpc(self, body: dict[str, Any]) -> dict[str, Any]:
        if body["method"] == "orl_fingerprints":
            return {"results": self.checksums}
        if body["method"] != "reload_weights" or "weights" in self.released:
            raise RuntimeError(f"no {body['method']} now")
        self.load(body["kwargs"]["weights_path"])
        self.lost = False
        if self.taking:  # vLLM counts them twice, and leaves others of their layers as memory was
            self.checksums = tuple(dict.fromkeys(rank, "unset") for rank in self.checksums)
        return {"results": [None]}

    async def _sleep(self, body: dict[str, Any]) -> dict[str, Any]:
        """Sleep; level 2 loses the weights."""
        await self._pause(body)
        self.released |= ASLEEP
        if body.get("level") == "2":
            self.lost = True
            self.checksums = tuple(dict.fromkeys(rank, "lost") for rank in self.checksums)
        return {"status": "sleeping"}

    async def _wake_up(self, body: dict[str, Any]) -> dict[str, Any]:
        self.released -= {body["tags"]} if "tags" in body else ASLEEP
        self.holds = self.holds and bool(self.released)
        return {"status": "sleeping" if self.released else "awake"}

    async def _reset_prefix_cache(self, _: dict[str, Any]) -> dict[str, Any]:
        return {"success": self.flush_cache()}

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
