"""As much of torch as is asked for the GPUs: how many there are, and the memory of each."""

from __future__ import annotations

import os
from types import SimpleNamespace

GIB = 2**30


def visible() -> list[int]:
    """The STAND_IN_GPUS that CUDA_VISIBLE_DEVICES leaves visible."""
    there = range(int(os.environ.get("STAND_IN_GPUS", "0")))
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    return list(there) if named is None else [int(name) for name in named.split(",") if int(name) in there]


def mem_get_info(index: int) -> tuple[int, int]:
    """Free and total bytes of a GPU of 80 GiB; STAND_IN_FREE_GIB are free, one number for all or for each."""
    free = os.environ.get("STAND_IN_FREE_GIB", "79").split(",")
    return int(free[visible()[index] % len(free)]) * GIB, 80 * GIB


cuda = SimpleNamespace(device_count=lambda: len(visible()), mem_get_info=mem_get_info)
