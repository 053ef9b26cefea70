"""Retries: the one engine that repeats a request, and the pauses between its attempts.

The caller says which faults a later attempt may survive. The module knows no transport.
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import TypeVar

from msgspec import Struct, field

T = TypeVar("T")

PAUSES = (0.2, 1.0)  # seconds before the second and the third attempt, if no server has to restart in between
_JITTER = random.Random()  # noqa: S311 - no secret is drawn; trainers seed the module's own generator


class Waiting(Struct, frozen=True, kw_only=True):
    """How retries wait, in seconds. Each of `pauses`, by default PAUSES, is followed by an attempt.

    A longer `retry_after` of a fault is obeyed, up to `longest_wish`. No attempt begins later than `patience` after the
    first fault. `postpone` gets all pauses and the time of later attempts, which no deadline should count.
    """

    pauses: Iterable[float] = field(default_factory=lambda: PAUSES)
    longest_wish: float = 0.0
    patience: Callable[[], float] = lambda: math.inf
    postpone: Callable[[float], None] = lambda _: None
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep


def backoff(first: float, longest: float) -> Iterator[float]:
    """Yield the pauses of exponential backoff: between half of a bound and all of it, which doubles up to `longest`."""
    bound = first
    while True:
        yield _JITTER.uniform(bound / 2, bound)
        bound = min(2 * bound, longest)


async def retried(
    ask: Callable[[], Awaitable[T]],
    faults: type[Exception] | tuple[type[Exception], ...],
    again: Callable[[Exception], bool] = lambda _: True,
    waiting: Waiting | None = None,
) -> T:
    """Return the answer of `ask`. While `again` is true of its fault, ask again as `waiting` says."""
    waiting, first = waiting or Waiting(), math.inf
    for pause in waiting.pauses:
        began = time.monotonic()
        try:
            return await ask()
        except faults as fault:
            now = time.monotonic()
            if first < now:
                waiting.postpone(now - began)
            first = min(first, now)
            left = waiting.patience() - (now - first)
            if left <= 0 or not again(fault):
                raise
            wish = min(getattr(fault, "retry_after", None) or 0.0, waiting.longest_wish)
        seconds = min(max(pause, wish), left)
        waiting.postpone(seconds)
        await waiting.sleep(seconds)
    return await ask()
