"""The GPUs of this machine and their memory: those of NVIDIA by their driver (NVML), those of AMD by torch.

Without a driver there are no GPUs to find. Only those count that CUDA_VISIBLE_DEVICES leaves visible. The driver
answers for all processes, so that the use by engines and trainers in other processes counts.
"""

from __future__ import annotations

import importlib
import os
import threading
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from statistics import fmean
from typing import Any

import psutil
from msgspec import Struct

from orl_rollout.edge.files import meanwhile

AMD = Path("/dev/kfd")  # the device of its driver
PERIOD = 1.0  # seconds between two samples: NVML's utilization covers at most the second before
GIB = 1 << 30


class Gpu(Struct, frozen=True, kw_only=True):
    """One GPU: its memory, and the free part of it, in bytes. `free` is None if the GPU does not answer."""

    total: int
    free: int | None = None


def gpu_memory() -> tuple[Gpu, ...]:
    """Return the memory of each GPU."""
    nvml = importlib.import_module("pynvml")  # its functions have no types
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        return _of_amd()
    try:
        return tuple(_memory_of(nvml, gpu) for gpu in visible_gpus(nvml).values())
    except nvml.NVMLError:
        return ()
    finally:
        nvml.nvmlShutdown()


def _of_amd() -> tuple[Gpu, ...]:
    """Return the GPUs of AMD. torch tells of them by CUDA's names."""
    if not AMD.exists() or find_spec("torch") is None:
        return ()
    cuda = importlib.import_module("torch").cuda
    memory = (cuda.mem_get_info(index) for index in range(cuda.device_count()))
    return tuple(Gpu(total=total, free=free) for free, total in memory)


def visible_gpus(nvml: Any) -> Mapping[int, Any]:
    """Return the GPUs by number: all, or those that CUDA_VISIBLE_DEVICES names by number or UUID."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    every: dict[int, tuple[Any, str]] = {}
    for index in range(nvml.nvmlDeviceGetCount()):
        with suppress(nvml.NVMLError):  # a GPU that fell off the bus has no handle
            gpu = nvml.nvmlDeviceGetHandleByIndex(index)
            every[index] = gpu, nvml.nvmlDeviceGetUUID(gpu)
    if named is None:
        return {index: gpu for index, (gpu, _) in every.items()}
    gpus: dict[int, Any] = {}
    for name in (name for word in named.split(",") if (name := word.strip())):  # a program counts them in this order
        if name.startswith("MIG-"):
            with suppress(nvml.NVMLError):
                gpus[len(gpus)] = nvml.nvmlDeviceGetHandleByUUID(name)
        gpus |= {index: gpu for index, (gpu, uuid) in every.items() if name == str(index) or uuid.startswith(name)}
    return gpus


def _memory_of(nvml: Any, gpu: Any) -> Gpu:
    try:
        memory = nvml.nvmlDeviceGetMemoryInfo(gpu)
    except nvml.NVMLError:  # it shares the memory of the machine
        return Gpu(total=psutil.virtual_memory().total)
    return Gpu(total=int(memory.total), free=int(memory.free))


@contextmanager
def gpu_usage() -> Generator[Callable[[], dict[str, float]]]:
    """Sample the GPUs while the block runs. The function that it gets returns the metrics since its last call.

    `gpuN/utilization` is a mean, a share in [0, 1]; `gpuN/memory_gib` is the most memory in use. `gpu_utilization` is
    the mean over the GPUs, `gpu_memory_gib` is of the fullest. N counts as nvidia-smi does.
    """
    nvml = importlib.import_module("pynvml")  # its functions have no types
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        yield dict
        return
    try:
        usage = _Usage(nvml)
        with meanwhile(usage.follow, "orl-gpus"):
            yield usage.take
    finally:
        nvml.nvmlShutdown()


class _Usage:
    """The samples of the GPUs since they were last taken."""

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml
        self._gpus = visible_gpus(nvml)
        self._lock = threading.Lock()
        self._samples: dict[str, list[float]] = {}

    def follow(self, ended: threading.Event) -> None:
        """Sample until the run ends."""
        while not ended.wait(PERIOD):
            self._sample()

    def take(self) -> dict[str, float]:
        """Return the metrics of the samples so far and of one more, and forget them."""
        self._sample()
        with self._lock:
            samples, self._samples = self._samples, {}
        used = {name: fmean(values) for name, values in samples.items() if name.endswith("/utilization")}
        most = {name: max(values) for name, values in samples.items() if name not in used}
        return {
            **({"gpu_utilization": fmean(used.values())} if used else {}),
            **({"gpu_memory_gib": max(most.values())} if most else {}),
            **used,
            **most,
        }

    def _sample(self) -> None:
        with self._lock:
            for index, gpu in self._gpus.items():
                with suppress(self._nvml.NVMLError):  # a GPU that is divided (MIG) tells none
                    share = self._nvml.nvmlDeviceGetUtilizationRates(gpu).gpu / 100
                    self._samples.setdefault(f"gpu{index}/utilization", []).append(share)
                with suppress(self._nvml.NVMLError):
                    used = self._nvml.nvmlDeviceGetMemoryInfo(gpu).used / GIB
                    self._samples.setdefault(f"gpu{index}/memory_gib", []).append(used)
