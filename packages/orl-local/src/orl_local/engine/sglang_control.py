"""SGLang's command, and the control endpoints of one server: weights and their checksums, memory, cache."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from orl_core.errors import EngineRefused
from orl_rollout.edge.children import free_port
from orl_rollout.sglang.client import SglangEngine

from orl_local.engine.control import Control, Launch

IDLE_SECONDS = 60.0
IDLE_POLL_SECONDS = 0.05


class SglangControl(Control):
    """Ask an SGLang."""

    NAME, CLIENT = "SGLang", SglangEngine
    PROGRAM = (sys.executable, "-P", "-m", "sglang.launch_server")
    SHARE_OPTION = "--mem-fraction-static"
    # Each SGLang runs on one GPU, or divides each tensor over several.
    OWNED = frozenset({
        "model", "model-path", "host", "port", "context-length", "dtype", "random-seed", "weight-version",
        "skip-tokenizer-init", "enable-memory-saver", "base-gpu-id", "gpu-id-step", "pp", "pp-size",
        "pipeline-parallel-size", "dp", "dp-size", "data-parallel-size",
    })  # fmt: skip

    @staticmethod
    def address(folder: Path) -> str:
        """See Control."""
        del folder
        return f"http://127.0.0.1:{free_port()}"

    @staticmethod
    def options(launch: Launch, url: str) -> list[str]:
        """See Control."""
        options: Mapping[str, object] = {
            "--model-path": launch.model,
            "--host": "127.0.0.1",
            "--port": url.rpartition(":")[2],
            "--context-length": launch.context_tokens,
            "--dtype": "bfloat16",
            SglangControl.SHARE_OPTION: launch.share,
            **({"--base-gpu-id": launch.gpu} if launch.gpu else {}),
            "--random-seed": launch.seed,
            "--weight-version": launch.weight_version,
            "--log-level-http": "warning",  # a line for each request costs a twentieth of a small model's step
        }
        words = [str(word) for option in options.items() for word in option]
        return [*words, "--skip-tokenizer-init", *(["--enable-memory-saver"] if launch.memory_saver else [])]

    async def update_from_disk(self, folder: str, version: str) -> None:
        """See Control."""
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
        """See Control.

        Raises:
            EngineError: requests still run after IDLE_SECONDS.
        """
        latest = time.monotonic() + IDLE_SECONDS
        while True:
            try:
                await self._post("/flush_cache")
            except EngineRefused:  # requests run, also those that a client has just left
                if time.monotonic() > latest:
                    raise
            else:
                return
            await asyncio.sleep(IDLE_POLL_SECONDS)

    async def release(self) -> None:
        """See Control."""
        await self.settle()
        # SGLang waits for its GPU only after a release (its pull request 31073), and kernels of answered requests may
        # still read weights and KV cache. The graphs' memory is not the saver's, so their release is that wait alone.
        for memory in ("cuda_graph", "weights", "kv_cache"):
            await self._post("/release_memory_occupation", {"tags": [memory]})

    async def wake(self) -> None:
        """See Control."""
        for memory in ("cuda_graph", "weights"):
            await self._post("/resume_memory_occupation", {"tags": [memory]})

    async def serve(self, *, woken: bool) -> None:
        """See Control."""
        if woken:
            await self._post("/resume_memory_occupation", {"tags": ["kv_cache"]})

    async def settle(self) -> None:
        """Abort what runs, and empty the prefix cache of the idle server. SGLang dies of a release before that."""
        await self._post("/abort_request", {"abort_all": True})
        await self.flush_cache()

    async def checksums(self) -> dict[str, str]:
        """See Control. The first request takes a real server 13 s: a kernel compiles."""
        with suppress(EngineRefused):
            return (await self._post("/weights_checker", {"action": "checksum"})).checksums()
        return {}


def source_of_sglang(path: str) -> Path | None:
    """Return the source at `path` inside the installed SGLang, which is not imported; None if there is none."""
    spec = find_spec("sglang")
    file = Path(spec.origin).parent / path if spec and spec.origin else None
    return file if file and file.is_file() else None
