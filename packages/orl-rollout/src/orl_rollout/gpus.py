"""The GPUs of this machine and their memory, from the torch that is installed next to orl.

torch is optional here: without it there are no GPUs to find. It counts only what CUDA_VISIBLE_DEVICES leaves visible.
"""

from __future__ import annotations

import importlib
from typing import Any

from msgspec import Struct


class Gpu(Struct, frozen=True, kw_only=True):
    """One GPU: its memory, and the free part of it, in bytes. `free` is None if the GPU does not answer."""

    total: int
    free: int | None = None


def count_gpus() -> int:
    """Return the number of GPUs; 0 without torch."""
    torch = _torch()
    return 0 if torch is None else int(torch.cuda.device_count())


def gpu_memory() -> tuple[Gpu, ...]:
    """Return the memory of each GPU. Asking opens a CUDA context on each, which lives as long as this process."""
    torch = _torch()
    return () if torch is None else tuple(_memory_of(torch, index) for index in range(torch.cuda.device_count()))


def _memory_of(torch: Any, index: int) -> Gpu:
    """Return the memory of one GPU. One that is full or kept by another process does not tell what is free."""
    try:
        free, total = torch.cuda.mem_get_info(index)
    except RuntimeError:
        return Gpu(total=torch.cuda.get_device_properties(index).total_memory)
    return Gpu(total=total, free=free)


def _torch() -> Any:
    try:
        return importlib.import_module("torch")
    except ImportError:
        return None
