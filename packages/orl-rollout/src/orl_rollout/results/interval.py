"""Confidence interval of a rate that was measured on few rollouts. Pure."""

from __future__ import annotations

from math import sqrt

Z = 1.959964  # quantile of the normal distribution for 95 %


def wilson(rate: float, n: float) -> tuple[float, float]:
    """Return Wilson's 95 % interval of a rate in [0, 1] over `n` independent trials; (0, 1) if there is none."""
    if n <= 0:
        return 0.0, 1.0
    spread = Z * Z / n
    centre = (rate + spread / 2) / (1 + spread)
    half = sqrt(spread * rate * (1 - rate) + spread * spread / 4) / (1 + spread)
    return max(0.0, centre - half), min(1.0, centre + half)
