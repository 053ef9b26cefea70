"""State of an episode: it runs, it has ended, or it failed; and its budgets of turns, time and ids.

A request after the end is refused. Requests may be under way side by side.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

from orl_core import Limits, OrlError, StopReason
from orl_rollout.loop.mistakes import Ending

from orl_gateway.dialects.exchange import RequestRefused


class EpisodeState:
    """Hold the ending or the fault of one episode, and its budgets. The first ending counts.

    `stopped` is the trainer's abort flag. `refusal` is what the agent got for its last request of the model, None if it
    was answered. Time runs from when the state is made. `sampled` counts ids.
    """

    def __init__(self, limits: Limits, stopped: Callable[[], bool]) -> None:
        self.ending: Ending | None = None
        self.error = ""
        self.refusal: RequestRefused | None = None
        self.stopped = stopped
        self.sampled = 0
        self._limits = limits
        self._ends = time.monotonic() + limits.rollout_timeout
        self._turns = 0  # those under way included
        self._reserved = 0
        self._freed = asyncio.Event()

    @property
    def over(self) -> bool:
        """Return whether nothing more can happen."""
        return self.ending is not None or bool(self.error)

    def check(self) -> None:
        """Refuse a request of an episode that is over."""
        if not self.over and self.stopped():
            self.ending = StopReason.ABORTED
        if self.error:
            raise _fault(self.error)
        if self.ending is not None:
            raise RequestRefused(f"the episode is over ({self.ending}); stop", code="episode_over")

    def end(self, ending: Ending) -> None:
        """End the episode, unless it is over."""
        if not self.over:
            self.ending = ending

    def fail(self, fault: OrlError) -> RequestRefused:
        """End the episode with ERROR, unless it is over, and return the refusal of the request that met the fault."""
        if not self.over:
            self.error = str(fault)
        return _fault(str(fault))

    @asynccontextmanager
    async def time(self) -> AsyncGenerator[None]:
        """Open what may take time. At the deadline of the episode the block is cancelled, and the episode ends."""
        self.check()
        clock = asyncio.timeout(max(0.0, self._ends - time.monotonic()))
        try:
            async with clock:
                yield
        except TimeoutError as exc:
            if not clock.expired():
                raise
            used = f"{self._limits.rollout_timeout:g} s (`rollout_timeout`) are over"
            raise self._exhausted(StopReason.TIMEOUT, used) from exc

    @asynccontextmanager
    async def turn(self) -> AsyncGenerator[None]:
        """Open one turn, with a deadline as `time` has. A turn that the block refuses does not count."""
        async with self.time():
            if self._turns >= self._limits.max_turns:
                raise self._exhausted(StopReason.MAX_TURNS, f"{self._limits.max_turns} turns (`max_turns`) are used")
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
            used = f"{self._limits.rollout_tokens} tokens (`rollout_tokens`) are used"
            raise self._exhausted(StopReason.MAX_TOKENS, used)
        budget = min(most, self._left())
        self._reserved += budget
        try:
            yield budget
        finally:
            self._reserved -= budget
            self._freed.set()

    def _left(self) -> int:
        return self._limits.rollout_tokens - self.sampled - self._reserved

    def _exhausted(self, ending: StopReason, used: str) -> RequestRefused:
        """End the episode at a budget, and return the refusal."""
        self.end(ending)
        return RequestRefused(f"the episode's {used}", code="budget_exhausted")


def _fault(text: str) -> RequestRefused:
    return RequestRefused(text, code="engine_fault", status=502)
