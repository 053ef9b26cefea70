"""As much of the driver of NVIDIA as is asked: STAND_IN_GPUS GPUs of 80 GiB, without a word on their use."""

from __future__ import annotations

import os
from types import SimpleNamespace

GIB = 2**30


class NVMLError(Exception):
    """What every function raises that has no answer."""


def nvmlInit() -> None:
    if not nvmlDeviceGetCount():
        raise NVMLError


def nvmlShutdown() -> None:
    pass


def nvmlDeviceGetCount() -> int:
    return int(os.environ.get("STAND_IN_GPUS", "0"))


def nvmlDeviceGetHandleByIndex(index: int) -> int:
    return index


def nvmlDeviceGetUUID(gpu: int) -> str:
    return f"GPU-{gpu}"


def nvmlDeviceGetUtilizationRates(_gpu: int) -> None:
    raise NVMLError


def nvmlDeviceGetMemoryInfo(gpu: int) -> SimpleNamespace:
    """STAND_IN_FREE_GIB are free, one number for all or for each."""
    free = os.environ.get("STAND_IN_FREE_GIB", "79").split(",")
    left = int(free[gpu % len(free)]) * GIB
    return SimpleNamespace(total=80 * GIB, free=left, used=80 * GIB - left)
