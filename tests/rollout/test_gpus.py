"""GPUs are found through torch, if it is there."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import pytest
from orl_rollout.gpus import Gpu, count_gpus, gpu_memory


def mem_get_info(index: int) -> tuple[int, int]:
    if index == 1:
        raise RuntimeError("CUDA error: out of memory")
    return 30, 80


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A torch with two GPUs, the second of which is full."""
    module = ModuleType("torch")
    properties = SimpleNamespace(total_memory=90)
    cuda = SimpleNamespace(
        device_count=lambda: 2, mem_get_info=mem_get_info, get_device_properties=lambda index: properties
    )
    monkeypatch.setattr(module, "cuda", cuda, raising=False)
    monkeypatch.setitem(sys.modules, "torch", module)
    return module


@pytest.mark.usefixtures("torch")
def test_full_gpu_does_not_tell_what_is_free():  # shows G6
    assert count_gpus() == 2
    assert gpu_memory() == (Gpu(total=80, free=30), Gpu(total=90))


def test_no_torch_is_no_gpu(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    assert (count_gpus(), gpu_memory()) == (0, ())
