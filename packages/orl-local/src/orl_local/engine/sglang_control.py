"""The control endpoints of one SGLang server: health, weights and their checksums, memory, cache.

It knows the wire and neither models nor rollouts. Rollouts use `orl_rollout.sglang.client`.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import Any, Literal, Self

import aiohttp
import msgspec
from msgspec import Struct
from orl_core.errors import EngineAnswerError, EngineError, EngineRefused, boundary
from orl_rollout.edge.http import HttpClient, read, read_error

Memory = Literal["weights", "kv_cache", "cuda_graph"]

JSON = {"Content-Type": "application/json"}
ANSWER_BYTES = 1 << 24
HEALTH_SECONDS = 5.0
CONTROL_SECONDS = 600.0  # for an update of large weights from a slow disk
IDLE_SECONDS = 60.0
IDLE_POLL_SECONDS = 0.05
_REFUSED = frozenset({400, 404, 405})  # the request itself, or its path: an older server


class _Rank(Struct):
    checksums: dict[str, str]


class _Answer(Struct):
    """What orl reads of answers: whether SGLang obeyed, and the checksums of its ranks."""

    success: bool = True
    message: str = ""
    ranks: tuple[_Rank, ...] = ()


class SglangControl:
    """Ask one server, on `gpus` GPUs. Inside `async with` one client stays open.

    Every method but `healthy` raises EngineError if the server refuses or does not answer.
    """

    def __init__(self, url: str, gpus: int = 1) -> None:
        self.url, self._gpus = url.rstrip("/"), gpus
        self._http: HttpClient | None = None

    async def __aenter__(self) -> Self:
        self._http = HttpClient(self.url)
        return self

    async def __aexit__(self, *exc: object) -> None:
        http, self._http = self._http, None
        if http:
            await http.close()

    async def healthy(self) -> bool:
        """Return whether the server answers and is ready."""
        with suppress(EngineError):
            await self._ask("GET", "/health", {}, HEALTH_SECONDS)
            return True
        return False

    async def update_from_disk(self, folder: str, version: str) -> None:
        """Load the weights in `folder`, safetensors with Hugging Face's names, as the version `version`."""
        await self._post(
            "/update_weights_from_disk", {"model_path": folder, "weight_version": version, "flush_cache": False}
        )

    async def update_from_tensors(self, bucket: str, version: str) -> None:
        """Load one flattened bucket, serialized as base64, of which each GPU keeps its part."""
        body = {
            "serialized_named_tensors": [bucket] * self._gpus,
            "load_format": "flattened_bucket",
            "flush_cache": False,
        }
        await self._post("/update_weights_from_tensor", {**body, "weight_version": version})

    async def flush_cache(self) -> None:
        """Empty the prefix cache, whose keys and values are those of older weights, once no request runs.

        Raises:
            EngineError: requests still run after IDLE_SECONDS.
        """
        latest = time.monotonic() + IDLE_SECONDS
        while True:
            try:
                await self._post("/flush_cache", {})
            except EngineRefused:  # requests run, also those that a client has just left
                if time.monotonic() > latest:
                    raise
            else:
                return
            await asyncio.sleep(IDLE_POLL_SECONDS)

    async def release(self, memory: Memory) -> None:
        """Give GPU memory back. What was in it is lost."""
        await self._post("/release_memory_occupation", {"tags": [memory]})

    async def resume(self, memory: Memory) -> None:
        """Take the GPU memory again that `release` gave back."""
        await self._post("/resume_memory_occupation", {"tags": [memory]})

    async def settle(self) -> None:
        """Abort what runs, and empty the prefix cache of the idle server. SGLang dies of a release before that."""
        await self._post("/abort_request", {"abort_all": True})
        await self.flush_cache()

    async def checksums(self) -> dict[str, str]:
        """Return checksums of each tensor that the server computes with, by its own names, of all its GPUs as one text.

        Empty if the server has no such request. The first one takes a real server 13 s: a kernel compiles.
        """
        joined: dict[str, str] = {}
        with suppress(EngineRefused):
            for rank in (await self._post("/weights_checker", {"action": "checksum"})).ranks:
                joined |= {name: joined.get(name, "") + one for name, one in rank.checksums.items()}
        return joined

    async def _post(self, path: str, body: dict[str, Any]) -> _Answer:
        text = await self._ask("POST", path, body, CONTROL_SECONDS)
        with boundary(EngineAnswerError, f"SGLang: POST {path}"):
            answer = msgspec.json.decode(text, type=_Answer) if text.startswith(b"{") else _Answer()
        if not answer.success:
            raise EngineError(f"SGLang: POST {path}: {answer.message}")
        return answer

    async def _ask(self, method: str, path: str, body: object, seconds: float) -> bytes:
        if self._http is None:
            async with self:
                return await self._ask(method, path, body, seconds)
        sent: dict[str, Any] = {"data": msgspec.json.encode(body), "timeout": aiohttp.ClientTimeout(total=seconds)}
        with boundary(EngineError, f"SGLang: {method} {path}"):
            async with self._http.request(method, path, headers=JSON, **sent) as answer:
                if answer.status != 200:
                    text = (await read_error(answer)).decode("utf-8", "replace")
                    error = EngineRefused if answer.status in _REFUSED else EngineError
                    raise error(f"SGLang: {method} {path}: HTTP {answer.status}: {text}")
                return await read(answer, ANSWER_BYTES)
