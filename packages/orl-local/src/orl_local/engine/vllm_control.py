"""vLLM's command, and the control endpoints of one server: weights and their checksums, memory, cache.

They exist only in its development mode, have no key, and take pickles: whoever reaches them runs code as this user. So
vLLM listens at a socket in a folder of this user alone, and its parts meet in that folder, too.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import msgspec
from orl_core.errors import EngineError
from orl_rollout.edge.http import UNIX
from orl_rollout.vllm.client import VllmEngine

from orl_local.engine.control import Control, Launch


class VllmControl(Control):
    """Ask a vLLM of version 0.32 or later."""

    NAME, CLIENT = "vLLM", VllmEngine
    PROGRAM = (sys.executable, "-P", "-m", "vllm.entrypoints.cli.main", "serve")
    SHARE_OPTION = "--gpu-memory-utilization"
    OWNED = frozenset({
        "model", "tokenizer", "config", "host", "port", "uds", "api-key", "max-model-len", "dtype", "seed",
        "enable-scale-out", "logprobs-mode", "weight-transfer-config", "worker-extension-cls", "enable-sleep-mode",
        "device-ids", "api-server-count", "data-parallel-size", "pipeline-parallel-size", "nnodes", "headless",
    })  # fmt: skip
    _half = False  # an update has begun that is not finished

    @staticmethod
    def address(folder: Path) -> str:
        """See Control."""
        return f"{UNIX}{folder / 'vllm'}"

    @staticmethod
    def options(launch: Launch, url: str) -> list[str]:
        """See Control."""
        devices = ",".join(map(str, range(launch.gpu, launch.gpu + launch.gpus)))
        options: Mapping[str, object] = {
            "--tokenizer": launch.tokenizer or launch.model,  # without one, stops that are text never match
            "--uds": url.removeprefix(UNIX),
            "--max-model-len": launch.context_tokens,
            "--dtype": "bfloat16",
            VllmControl.SHARE_OPTION: launch.share,
            **({"--device-ids": devices} if launch.gpu else {}),
            "--seed": launch.seed,
            "--logprobs-mode": "processed_logprobs",
            "--weight-transfer-config": '{"backend":"ipc"}',
            "--worker-extension-cls": "orl_local.engine.fingerprints.Fingerprinted",
        }
        words = [str(word) for option in options.items() for word in option]
        flags = ["--enable-scale-out", "--enable-prompt-tokens-details", "--disable-uvicorn-access-log"]
        return [launch.model, *words, *flags, *(["--enable-sleep-mode"] if launch.memory_saver else [])]

    @staticmethod
    def variables(url: str) -> dict[str, str]:
        """See Control."""
        folder = str(Path(url.removeprefix(UNIX)).parent)
        return {
            "VLLM_SERVER_DEV_MODE": "1",
            "VLLM_ALLOW_INSECURE_SERIALIZATION": "1",
            "VLLM_RPC_BASE_PATH": folder,
            "VLLM_API_KEY": "",  # the user's own would refuse rollouts
            "VLLM_NO_USAGE_STATS": "1",
        }

    async def begin(self, version: str) -> None:
        """See Control."""
        await self._post("/update_weight_version", {"new_version": version})

    async def prepare(self) -> None:
        """Pause, once no request runs. Meanwhile requests wait (0.32), or are refused with 503 and ask again (0.33)."""
        self._half = True
        await self._post("/pause?mode=wait")
        await self._post("/init_weight_transfer_engine", {"init_info": {"packed": True}})
        await self._post("/start_weight_update")

    async def update_from_tensors(self, bucket: str, version: str) -> None:
        """See Control."""
        del version
        await self._post("/update_weights", {"update_info": msgspec.Raw(bucket.encode())})

    async def finish(self, version: str) -> None:
        """See Control."""
        await self._post("/finish_weight_update", {"weight_version": version})
        self._half = False

    async def update_from_disk(self, folder: str, version: str) -> None:
        """See Control. Layers that a fault has left half loaded would not load wholly: they are finished before."""
        await self._post("/pause?mode=wait")
        if self._half:
            with suppress(EngineError):  # it has begun, unless vLLM has ended it
                await self._post("/start_weight_update")
            await self._post("/finish_weight_update")
            self._half = False
        await self._post("/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": folder}})
        await self.begin(version)

    async def flush_cache(self) -> None:
        """See Control."""
        await self._post("/reset_prefix_cache")

    async def release(self) -> None:
        """Sleep at level 2, which keeps buffers and CUDA graphs, and drops weights: each sync brings all of them."""
        await self._post("/sleep?level=2&mode=abort")

    async def wake(self) -> None:
        """See Control."""
        await self._post("/wake_up?tags=weights")

    async def serve(self, *, woken: bool) -> None:
        """See Control. A vLLM that is wholly awake takes requests."""
        await self._post("/wake_up?tags=kv_cache" if woken else "/resume")

    async def checksums(self) -> dict[str, str]:
        """See Control. Each worker computes its own where the weights are."""
        return (await self._post("/collective_rpc", {"method": "orl_fingerprints"})).checksums()
