"""GPUs are asked of the driver, which may be missing, old, or without an answer."""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import SimpleNamespace

import pytest
from orl_rollout.gpus import Gpu, gpu_memory

from tests.kit import nvml
from tests.kit.nvml import GIB, driver


def test_memory_in_use_of_visible_gpus(monkeypatch: pytest.MonkeyPatch):
    with driver(nvml.Gpu("GPU-a", gib=30), nvml.Gpu("GPU-b", None)):
        assert len(gpu_memory()) == 2
        assert gpu_memory() == (Gpu(total=80 * GIB, free=50 * GIB), Gpu(total=80 * GIB, free=80 * GIB))
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
        assert gpu_memory() == (Gpu(total=80 * GIB, free=80 * GIB),)
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,0")  # the first one that a program sees is the second one here
        assert [gpu.free for gpu in gpu_memory()] == [80 * GIB, 50 * GIB]


def test_no_driver_is_no_gpu():
    with driver():
        assert gpu_memory() == ()


def test_gpu_that_fell_off_the_bus_is_none():
    lost = nvml.Gpu("GPU-a")
    lost.lost = True
    with driver(lost, nvml.Gpu("GPU-b")):
        assert len(gpu_memory()) == 1


def test_division_that_is_visible_counts(monkeypatch: pytest.MonkeyPatch):
    with driver(nvml.Gpu("GPU-a")) as made:
        made.parts = (nvml.Gpu("MIG-b", None, 60.0),)
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-b,MIG-gone")
        assert gpu_memory() == (Gpu(total=80 * GIB, free=20 * GIB),)


def test_gpus_of_amd_are_those_of_torch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr("orl_rollout.gpus.AMD", tmp_path)
    cuda = SimpleNamespace(device_count=lambda: 2, mem_get_info=lambda index: (index * GIB, 192 * GIB))
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda, __spec__=ModuleSpec("torch", None)))
    with driver():
        assert gpu_memory() == (Gpu(total=192 * GIB, free=0), Gpu(total=192 * GIB, free=GIB))
