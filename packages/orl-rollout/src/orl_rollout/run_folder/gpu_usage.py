"""Utilization and memory of this machine's NVIDIA GPUs while a run trains, asked of the driver (NVML).

The driver answers for all processes, so that engines and trainers in other processes count. Without a driver there is
nothing to report.
"""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from statistics import fmean
from typing import Any

from orl_rollout.gpus import visible_gpus
from orl_rollout.run_folder.follow import meanwhile

PERIOD = 1.0  # seconds between two samples: NVML's utilization covers at most the second before
GIB = 1 << 30


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
