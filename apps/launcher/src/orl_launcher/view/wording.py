"""Numbers and times in words, the same in the terminal and on a page. Pure."""

from __future__ import annotations

from orl_rollout.results.interval import wilson


def number(value: float) -> str:
    """Write a number with at most three decimals: 0.25, 12, 3.142."""
    shown = f"{value:.3f}".rstrip("0").rstrip(".")
    return "0" if shown in ("-0", "") else shown


def percent(share: float) -> str:
    """Write a share in [0, 1]: 31 %."""
    return f"{100 * share:.0f}\u00a0%"


def rate(share: float, n: float) -> str:
    """Write a share of `n` trials with its 95 % interval: 62 % (45 to 77 %, n 33)."""
    low, high = wilson(share, n)
    return f"{percent(share)} ({100 * low:.0f} to {percent(high)}, n {n:.0f})"


def thousands(value: float) -> str:
    """Write a large number in groups of three digits: 363 312."""
    return f"{value:,.0f}".replace(",", "\u202f")


def duration(seconds: float) -> str:
    """Write a time: 12 ms, 3.4 s, 4 min 10 s, 2 h 5 min."""
    if seconds < 1:
        return f"{1000 * seconds:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def count(steps: range) -> str:
    """Count steps: 30 steps, or 8 steps (33 to 40) if the run continued an earlier one."""
    counted = "1 step" if len(steps) == 1 else f"{len(steps)} steps"
    return f"{counted} ({steps.start} to {steps[-1]})" if steps and steps.start > 1 else counted


MAIN_METRICS = (("success", percent), ("reward", number), ("valid_calls", percent), ("turns", number))
