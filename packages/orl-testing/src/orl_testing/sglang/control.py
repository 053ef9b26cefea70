"""The control endpoints of the stand-in for SGLang: aborts, pauses, weights, the cache, health, and what a router asks.

Bodies and answers only; what they do is a method of the server, which tests may call directly.
"""

from __future__ import annotations

from typing import Any

import msgspec
from aiohttp import web

from orl_testing.sglang.engine import ServedModel

MAPPED = {"weights", "kv_cache"}  # the memory that a release unmaps
MEMORY = (*MAPPED, "cuda_graph")


def control_routes(server: ServedModel) -> list[web.RouteDef]:
    """Return every endpoint of `server` but /generate."""
    control = _Control(server)
    return [
        web.post("/abort_request", control.abort),
        web.post("/pause_generation", control.pause),
        web.post("/continue_generation", control.resume),
        web.post("/update_weight_version", control.update_version),
        web.post("/update_weights_from_disk", control.update_from_disk),
        web.post("/update_weights_from_tensor", control.update_from_tensor),
        web.post("/weights_checker", control.check_weights),
        web.post("/release_memory_occupation", control.release_memory),
        web.post("/resume_memory_occupation", control.resume_memory),
        web.route("*", "/flush_cache", control.flush_cache),
        web.get("/workers", control.workers),
        web.get("/health", control.health),
        web.get("/health_generate", control.health),
        web.get("/model_info", control.model_info),
        web.get("/server_info", control.server_info),
        web.get("/v1/loads", control.loads),
    ]


class _Control:
    """The handlers, over one server."""

    def __init__(self, server: ServedModel) -> None:
        self._server = server

    async def abort(self, http: web.Request) -> web.Response:
        body = await _body(http)
        self._server.abort(None if body.get("abort_all") else body.get("rid", ""))
        return web.Response()

    async def pause(self, http: web.Request) -> web.Response:
        """Mode `abort` returns what is running and waits for that; `retract` and `in_place` keep it."""
        mode = (await _body(http)).get("mode", "abort")
        if mode not in ("abort", "retract", "in_place"):
            return web.json_response({"error": {"message": f"Invalid mode: {mode}"}}, status=400)
        self._server.pause()
        if mode == "abort":
            self._server.abort()
            await self._server.until_running(0)
        return web.json_response({"message": "Generation paused successfully.", "status": "ok"})

    async def resume(self, http: web.Request) -> web.Response:
        self._server.resume()
        return web.json_response({"message": "Generation continued successfully.", "status": "ok"})

    async def update_version(self, http: web.Request) -> web.Response:
        """Sets the string and nothing else, as there: the cache stays."""
        body = await _body(http)
        if body.get("abort_all_requests"):
            self._server.abort()
        self._server.weight_version = str(body["new_version"])
        return web.json_response({"success": True, "message": "", "new_version": self._server.weight_version})

    async def update_from_disk(self, http: web.Request) -> web.Response:
        """Waits for what runs, unless that is paused or aborted; of the files it keeps the checksums."""
        body = await _body(http)
        if body.get("abort_all_requests"):
            self._server.abort()
        paused = self._server.running if self._server.paused else 0
        await self._server.update_idle(str(body.get("weight_version") or self._server.weight_version))
        self._server.load(str(body["model_path"]))
        return web.json_response({"success": True, "message": "", "num_paused_requests": paused})

    async def update_from_tensor(self, http: web.Request) -> web.Response:
        """Takes flattened buckets alone, one for each rank; they are kept and not looked at."""
        body = await _body(http)
        each = body["serialized_named_tensors"]
        if body.get("load_format") != "flattened_bucket" or len(each) != self._server.gpus:
            return web.json_response({"success": False, "message": "not a flattened bucket for each GPU"}, status=400)
        await self._server.update_idle(str(body.get("weight_version") or self._server.weight_version))
        self._server.weights.append(each[0])
        return web.json_response({"success": True, "message": "Success"})

    async def check_weights(self, http: web.Request) -> web.Response:
        """Show the checksums of each rank; 404 if they are not known, as an older SGLang answers."""
        if (await _body(http)).get("action") != "checksum" or not self._server.checksums:
            return web.json_response({"detail": "Not Found"}, status=404)
        ranks = [{"checksums": rank} for rank in self._server.checksums]
        return web.json_response({"success": True, "ranks": ranks})

    async def release_memory(self, http: web.Request) -> web.Response:
        """Refuses while requests run, as there. SGLang waits for the GPU only after it gave the memory back."""
        tags = (await _body(http)).get("tags") or MEMORY
        if self._server.running:
            return web.json_response({"error": {"message": "the server is not idle"}}, status=400)
        if self._server.gpu_busy and MAPPED & {*tags}:
            return web.json_response({"error": {"message": "CUDA error: an illegal memory access"}}, status=500)
        self._server.gpu_busy = False
        self._server.released |= set(tags)
        return web.Response()

    async def resume_memory(self, http: web.Request) -> web.Response:
        self._server.released -= set((await _body(http)).get("tags") or MEMORY)
        return web.Response()

    async def flush_cache(self, http: web.Request) -> web.Response:
        if self._server.flush_cache():
            return web.Response(text="Cache flushed.\n")
        return web.Response(status=400, text="Cache not flushed: requests are running.\n")

    async def workers(self, http: web.Request) -> web.Response:
        load, url = self._server.running, self._server.url
        worker = {"id": url, "url": url, "model_id": "stand-in", "is_healthy": True, "load": load}
        stats = {"prefill_count": 0, "decode_count": 0, "regular_count": 1}
        return web.json_response({"workers": [worker], "total": 1, "stats": stats})

    async def health(self, http: web.Request) -> web.Response:
        return web.Response()

    async def model_info(self, http: web.Request) -> web.Response:
        info = {"model_path": "stand-in", "is_generation": True, "weight_version": self._server.weight_version}
        return web.json_response(info)

    async def server_info(self, http: web.Request) -> web.Response:
        return web.json_response({"model_path": "stand-in", "context_length": self._server.context_tokens})

    async def loads(self, http: web.Request) -> web.Response:
        waiting, total = self._server.waiting, self._server.running
        load = {"num_running_reqs": total - waiting, "num_waiting_reqs": waiting, "num_total_reqs": total}
        sums = {"total_running_reqs": total - waiting, "total_waiting_reqs": waiting, "total_reqs": total}
        return web.json_response({"dp_rank_count": 1, "loads": [{"dp_rank": 0, **load}], "aggregate": sums})


async def _body(http: web.Request) -> dict[str, Any]:
    """The body of a control request; an empty one says nothing."""
    return msgspec.json.decode(await http.read() or b"{}", type=dict[str, Any])
