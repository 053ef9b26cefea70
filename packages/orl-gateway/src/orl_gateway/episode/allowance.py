"""The budgets of one episode at the gateway: turns, time, and sampled ids, with requests side by side."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from orl_core.limits import Limits
from orl_core.trajectory import StopReason

from orl_gateway.dialects.exchange import RequestRefused
from orl_gateway.episode.state import EpisodeState


class Allowance:
    """Remaining budget of an episode. Time runs from when it is made. `sampled` counts ids."""

    def __init__(self, limits: Limits, state: EpisodeState) -> None:
        self.sampled = 0
        self._limits = limits
        self._state = state
        self._ends = time.monotonic() + limits.rollout_timeout
        self._turns = 0  # those under way included
        self._reserved = 0
        self._freed = asyncio.Event()

    @asynccontextmanager
    async def time(self) -> AsyncGenerator[None]:
        """Open what may take time. At the deadline of the episode the block is cancelled, and the episode ends."""
        self._state.check()
        clock = asyncio.timeout(max(0.0, self._ends - time.monotonic()))
        try:
            async with clock:
                yield
        except TimeoutError as exc:
            if not clock.expired():
                raise
            self._state.end(StopReason.TIMEOUT)
            text = f"the episode's {self._limits.rollout_timeout:g} s (`rollout_timeout`) are over"
            raise RequestRefused(text, code="budget_exhausted") from exc

    @asynccontextmanager
    async def turn(self) -> AsyncGenerator[None]:
        """Open one turn, with a deadline as `time` has. A turn that the block refuses does not count."""
        async with self.time():
            if self._turns >= self._limits.max_turns:
                self._state.end(StopReason.MAX_TURNS)
                text = f"the episode's {self._limits.max_turns} turns (`max_turns`) are used"
                raise RequestRefused(text, code="budget_exhausted")
            self._turns += 1
            try:
                yield
            except RequestRefused:
                self._turns -= 1
                raise

    @asynccontextmanager
    async def tokens(self, most: int) -> AsyncGenerator[int]:
        """Yield how many ids may be sampled, at most `most`. Turns side by side share what is left."""
        while self._left() < 1 and self._reserved:
            self._freed.clear()
            await self._freed.wait()
        if self._left() < 1:
            self._state.end(StopReason.MAX_TOKENS)
            text = f"the episode's {self._limits.rollout_tokens} tokens (`rollout_tokens`) are used"
            raise RequestRefused(text, code="budget_exhausted")
        budget = min(most, self._left())
        self._reserved += budget
        try:
            yield budget
        finally:
            self._reserved -= budget
            self._freed.set()

    def _left(self) -> int:
        return self._limits.rollout_tokens - self.sampled - self._reserved
