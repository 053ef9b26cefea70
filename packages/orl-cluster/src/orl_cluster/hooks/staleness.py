"""How old the weights were that sampled a training batch. Pure; knows samples by their `weight_versions` alone.

slime and miles number the weights of their engines from 1, the weights that a process begins with, and add 1 at each
update. They update after every batch whose number, from 1, is a multiple of the interval, also in a resumed run.
"""

from __future__ import annotations

from collections.abc import Iterable
from statistics import fmean
from typing import Any


def staleness_of(samples: Iterable[Any], trained: int, interval: int, *, first: int = 0) -> float | None:
    """Return the mean number of batches that training was ahead of the weights that sampled `samples`.

    `trained` counts the batches of the run that were trained, `first` those before the trainer started, `interval`
    those between two updates of the engine's weights. The mean is taken over generations. None where a version is
    missing, is no number or is newer than training.
    """
    versions = [str(version) for sample in samples for version in getattr(sample, "weight_versions", None) or ()]
    if not versions or not all(version.isdecimal() for version in versions):
        return None
    ages = [trained - max(first, (first // interval + int(version) - 1) * interval) for version in versions]
    return fmean(ages) if min(ages) >= 0 else None
