"""The GPUs of this machine and their memory: those of NVIDIA by their driver (NVML), those of AMD by torch.

Without a driver there are no GPUs to find. Only those count that CUDA_VISIBLE_DEVICES leaves visible.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil
from msgspec import Struct

AMD = Path("/dev/kfd")  # the device of its driver


class Gpu(Struct, frozen=True, kw_only=True):
    """One GPU: its memory, and the free part of it, in bytes. `free` is None if the GPU does not answer."""

    total: int
    free: int | None = None


def count_gpus() -> int:
    """Return the number of GPUs."""
    return len(gpu_memory())


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
