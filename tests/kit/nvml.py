"""A driver of NVIDIA without a GPU: the functions of `pynvml` that orl calls, over numbers that a test sets."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace

import pynvml
import pytest

GIB = 1 << 30


class Gpu:
    """One GPU. `percent` is None if it tells no utilization, as under MIG."""

    def __init__(self, uuid: str, percent: int | None = 0, gib: float = 0.0) -> None:
        self.uuid, self.percent, self.gib = uuid, percent, gib
        self.lost = False


class Driver(ModuleType):
    """The module. `opened` counts nvmlInit without nvmlShutdown; without GPUs there is no driver.

    `parts` are divisions of GPUs (MIG), which have no number. `on_sample` is called after the memory of a GPU was read.
    """

    NVMLError = pynvml.NVMLError

    def __init__(self, *gpus: Gpu) -> None:
        super().__init__("pynvml")
        self.gpus, self.opened = gpus, 0
        self.parts: tuple[Gpu, ...] = ()
        self.on_sample: Callable[[], None] = lambda: None

    def nvmlInit(self) -> None:
        if not self.gpus:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)
        self.opened += 1

    def nvmlShutdown(self) -> None:
        self.opened -= 1

    def nvmlDeviceGetCount(self) -> int:
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Gpu:
        if self.gpus[index].lost:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)
        return self.gpus[index]

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> Gpu:
        for gpu in (*self.gpus, *self.parts):
            if gpu.uuid == uuid:
                return gpu
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)

    def nvmlDeviceGetUUID(self, gpu: Gpu) -> str:
        return gpu.uuid

    def nvmlDeviceGetUtilizationRates(self, gpu: Gpu) -> SimpleNamespace:
        if gpu.lost or gpu.percent is None:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST if gpu.lost else pynvml.NVML_ERROR_NOT_SUPPORTED)
        return SimpleNamespace(gpu=gpu.percent, memory=0)

    def nvmlDeviceGetMemoryInfo(self, gpu: Gpu) -> SimpleNamespace:
        if gpu.lost:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)
        used = int(gpu.gib * GIB)
        self.on_sample()
        return SimpleNamespace(total=80 * GIB, free=80 * GIB - used, used=used)


@contextmanager
def driver(*gpus: Gpu) -> Generator[Driver]:
    """Give this process a driver with `gpus`, all of them visible, while the block runs."""
    made = Driver(*gpus)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "pynvml", made)
        patch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        yield made
    assert made.opened == 0
