"""As much of torch as is asked for the GPUs: how many there are, and the memory of each."""

from __future__ import annotations

import os
from types import SimpleNamespace

GIB = 2**30


def mem_get_info(index: int) -> tuple[int, int]:
    """Free and total bytes of a GPU of 80 GiB, of which STAND_IN_FREE_GIB are free."""
    return int(os.environ.get("STAND_IN_FREE_GIB", "79")) * GIB, 80 * GIB


cuda = SimpleNamespace(
    device_count=lambda: int(os.environ.get("STAND_IN_GPUS", "0")),
    mem_get_info=mem_get_info,
)
