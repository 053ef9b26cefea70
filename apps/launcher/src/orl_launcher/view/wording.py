"""Numbers and times in words, the same in the terminal and on a page. Pure."""

from __future__ import annotations

import time
from typing import Any, cast

from orl_core.text import visible
from orl_rollout.results.metrics import wilson
from orl_rollout.run_folder.metrics_log import Tally


def number(value: float) -> str:
    """Write a number with at most three decimals: 0.25, 12, 3.142."""
    shown = f"{value:.3f}".rstrip("0").rstrip(".")
    return "0" if shown in ("-0", "") else shown


def one_line(text: str, most: int) -> str:
    """Write a text as one printable line of at most `most` characters."""
    line = " ".join(visible(text).split())
    return line if len(line) <= most else f"{line[: most - 1]}…"


def percent(share: float) -> str:
    """Write a share in [0, 1]: 31 %."""
    return f"{100 * share:.0f}\u00a0%"


def rate(share: float, n: float, counted: str = "") -> str:
    """Write a share of `n` trials with its 95 % interval: 62 % (45 to 77 %, n 33). `counted` says more of n."""
    low, high = wilson(share, n)
    return f"{percent(share)} ({100 * low:.0f} to {percent(high)}, {counted or f'n {n:.0f}'})"


def success_rate(share: float | None, tally: Tally) -> str:
    """Write the success of judged rollouts as `rate` does, and how many of them there are if some were not judged."""
    counted = str(tally)
    if share is None:
        return f"- ({counted})" if counted else "-"
    return rate(share, tally.judged, counted)


def noted(text: str, tally: Tally) -> str:
    """Add to a success rate how many rollouts were judged, if some were not: 50 % (2 of 16 judged, 14 in ERROR)."""
    return f"{text} ({tally})" if str(tally) else text


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


def moment(seconds: float) -> str:
    """Write a moment, in seconds since the epoch, in the time of this machine: 2026-01-31 17:45."""
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))


def count(steps: range) -> str:
    """Count steps: 30 steps, or 8 steps (33 to 40) if the run continued an earlier one."""
    counted = "1 step" if len(steps) == 1 else f"{len(steps)} steps"
    return f"{counted} ({steps.start} to {steps[-1]})" if steps and steps.start > 1 else counted


JUDGED = frozenset({"success", "reward", "turns", "tokens_per_turn"})  # taken only over the judged rollouts
GPU_METRICS = (("gpu_utilization", percent), ("gpu_memory_gib", number))
MAIN_METRICS = (
    ("success", percent),
    ("reward", number),
    ("valid_calls", percent),
    ("turns", number),
    ("tokens_per_turn", number),
)


def flat(tree: dict[str, Any], path: str = "") -> list[tuple[str, str]]:
    """Return the leaves of plain JSON as (dotted path, value), without nulls and empty collections."""
    leaves: list[tuple[str, str]] = []
    for key, value in tree.items():
        name = f"{path}.{key}" if path else key
        if isinstance(value, dict):
            leaves += flat(cast("dict[str, Any]", value), name)
        elif value not in (None, [], ()):
            members = cast("list[object]", value if isinstance(value, list | tuple) else [value])
            texts = (str(member).lower() if isinstance(member, bool) else str(member) for member in members)
            leaves.append((name, ", ".join(texts)))
    return leaves
