"""How old the weights were that sampled a training batch. Pure; knows samples by their `weight_versions` alone.

slime and miles number the weights of their engines from 1, before the first batch, and add 1 at each update.
"""

from __future__ import annotations

from collections.abc import Iterable
from statistics import fmean
from typing import Any


def staleness_of(samples: Iterable[Any], trained: int, interval: int) -> float | None:
    """Return the mean number of batches that training was ahead of the weights that sampled `samples`.

    `trained` counts the batches trained since the trainer started, `interval` those between two updates of the
    engine's weights. The mean is taken over generations. None where a version is missing, is no number or is newer
    than training.
    """
    versions = [str(version) for sample in samples for version in getattr(sample, "weight_versions", None) or ()]
    if not versions or not all(version.isdecimal() for version in versions):
        return None
    ages = [trained - (int(version) - 1) * interval for version in versions]
    return fmean(ages) if min(ages) >= 0 and max(ages) <= trained else None
