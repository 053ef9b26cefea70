"""Utilization and memory of GPUs, of a driver that is a fake, and of this machine, which may have none."""

from __future__ import annotations

import threading

import pynvml
import pytest
from orl_rollout import gpus
from orl_rollout.gpus import gpu_usage

from tests.kit.nvml import Driver, Gpu, driver


def test_usage_of_each_gpu_and_over_all() -> None:
    with driver(Gpu("GPU-a", 80, 40.0), Gpu("GPU-b", 40, 10.5)), gpu_usage() as take:
        assert take() == {
            "gpu_utilization": pytest.approx(0.6),
            "gpu_memory_gib": 40.0,
            "gpu0/utilization": 0.8,
            "gpu1/utilization": 0.4,
            "gpu0/memory_gib": 40.0,
            "gpu1/memory_gib": 10.5,
        }


def test_samples_between_two_takes_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step's mean and most come of a thread that samples, and each step has samples of its own."""
    monkeypatch.setattr(gpus, "PERIOD", 0.001)
    gpu, sampled = Gpu("GPU-a", 100, 70.0), threading.Event()
    with driver(gpu) as made:
        monkeypatch.setattr(made, "on_sample", sampled.set)
        with gpu_usage() as take:
            assert sampled.wait(30.0)
            gpu.percent, gpu.gib = 0, 1.0
            step = take()
            assert 0.0 < step["gpu_utilization"] < 1.0
            assert step["gpu_memory_gib"] == 70.0
            assert take() == {
                "gpu_utilization": 0.0,
                "gpu_memory_gib": 1.0,
                "gpu0/utilization": 0.0,
                "gpu0/memory_gib": 1.0,
            }


@pytest.mark.parametrize(
    ("visible", "counted"),
    [("1", ["gpu1"]), ("GPU-c, 0", ["gpu0", "gpu2"]), ("", []), ("GPU-", ["gpu0", "gpu1", "gpu2"])],
)
def test_visible_gpus_alone_count(monkeypatch: pytest.MonkeyPatch, visible: str, counted: list[str]) -> None:
    with driver(Gpu("GPU-a", 1), Gpu("GPU-b", 2), Gpu("GPU-c", 3)):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        with gpu_usage() as take:
            assert sorted(name.partition("/")[0] for name in take() if name.endswith("/utilization")) == counted


def test_gpu_that_tells_nothing_is_left_out() -> None:
    divided, lost, later = Gpu("GPU-a", None, 3.0), Gpu("GPU-b", 50, 2.0), Gpu("GPU-c", 50, 2.0)
    lost.lost = True
    with driver(divided, lost, later), gpu_usage() as take:
        later.lost = True
        assert take() == {"gpu_memory_gib": 3.0, "gpu0/memory_gib": 3.0}


def test_without_driver_nothing_is_measured() -> None:
    with driver(), gpu_usage() as take:
        assert take() == {}


def test_driver_is_released_after_an_error() -> None:
    with driver(Gpu("GPU-a")) as made:
        with pytest.raises(RuntimeError, match="run"), gpu_usage():
            raise RuntimeError("run")
        assert made.opened == 0


def test_fake_has_the_functions_of_the_library() -> None:
    named = [name for name in vars(Driver) if name.startswith("nvml")]
    assert named
    assert [name for name in named if not callable(getattr(pynvml, name, None))] == []
