"""Rollouts that the trainer put aside (`--partial-rollout`). They keep their session, and continue from the last turn.

What was sampled before stays as it was, ids and logprobs (law L1). A rollout waits for the trainer at most for
KEEP_SECONDS. A trainer that asks later, or in another process, gets the task played from its beginning.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

from orl_rollout.loop.clock import Pause
from orl_rollout.results.outcome import Outcome

KEEP_SECONDS = 3600.0  # an update of the weights and an evaluation take less


class KeptRollout:
    """One rollout, which begins now. `play` is handed the pause of its Clock."""

    def __init__(self, play: Callable[[Pause], Awaitable[Outcome]]) -> None:
        self._waits = asyncio.Event()
        self._goes_on = asyncio.Event()
        self._playing = asyncio.ensure_future(play(self._pause))

    @property
    def ended(self) -> bool:
        """Tell whether it has ended."""
        return self._playing.done()

    async def proceed(self) -> Outcome | None:
        """Play on, to the end or to the trainer's next abort; None if it waits for the trainer again."""
        self._waits.clear()
        self._goes_on.set()
        waiting = asyncio.ensure_future(self._waits.wait())
        try:
            await asyncio.wait({self._playing, waiting}, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            await self.cancel()
            raise
        finally:
            waiting.cancel()
        return self._playing.result() if self._playing.done() else None

    async def cancel(self) -> None:
        """End the rollout, and return when its session is closed."""
        self._playing.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.gather(self._playing, return_exceptions=True)

    async def _pause(self) -> bool:
        self._goes_on.clear()
        self._waits.set()
        try:
            async with asyncio.timeout(KEEP_SECONDS):
                await self._goes_on.wait()
        except TimeoutError:
            return False
        return True
