"""Limit the sessions of one environment to as many as its server bears (AIMD), and wait for a server that is away.

A full server answers 429. Then the limit is halved, once for all sessions that were let in before. It grows by one for
every limit's worth of sessions that open, up to the configured most. A server that is away takes no session and says
nothing of its limit. In both cases nothing was begun: the rollout pauses without a slot and keeps its turn. Waiting
happens outside of a rollout, so no deadline of one counts it.

Only an opening is retried. A call that is answered 429 may have run, so it is a fault; it lowers the limit too. The
module knows sessions by their protocol, nothing of transports or of tasks.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import math
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from orl_core.config import RolloutConfig
from orl_core.messages import ToolCall, ToolResult
from orl_core.task import Task

from orl_rollout.edge.retry import backoff
from orl_rollout.logs import Sparing, logger_of
from orl_rollout.loop.session import Opening, Overloaded, Session, SessionLost, Unserved

T = TypeVar("T")

FIRST_PAUSE = 0.25  # seconds, at most, before the second try of an opening; then twice as long each time
LONGEST_PAUSE = 30.0
LONGEST_WISH = 60.0  # seconds: what a server's Retry-After is believed
BLINK = 1.0  # seconds between two looks at the host's flag
FIRST_CONTACT = 10.0  # seconds of patience with a server that has never answered: its address may be wrong


class AdaptiveLimiter:
    """The sessions of one environment on one event loop. `most` is the configured limit; None means no limit.

    `limit` is how many may be in flight now (its whole part; infinite until a server refuses), `taken` how many are.
    `patience` is how long one rollout waits for its session, in seconds, `answered` whether the server ever served one.
    """

    def __init__(self, most: int | None = None, *, name: str = "", patience: float = RolloutConfig().patience) -> None:
        self.name = name
        self.patience = patience
        self.answered = False
        self.warnings = Sparing(logger_of("orl"))
        self._most = float(most or math.inf)
        self.limit = self._most
        self.taken = 0
        self._burst = 0
        self._turns = itertools.count()
        self._queue: list[tuple[int, asyncio.Future[int]]] = []

    def ticket(self) -> Ticket:
        """Make a place for one rollout, behind all that were made before."""
        return Ticket(self, next(self._turns))

    @property
    def waiting(self) -> int:
        """Return how many places wait for a slot."""
        return sum(not let_in.done() for _, let_in in self._queue)

    async def take(self, turn: int) -> int:
        """Wait for a slot, by order of `turn`; the burst to which its session will belong."""
        let_in = asyncio.get_running_loop().create_future()
        heapq.heappush(self._queue, (turn, let_in))
        self._let_in()
        try:
            return await let_in
        except asyncio.CancelledError:
            if not let_in.cancelled():
                self.give()
            raise

    def give(self) -> None:
        """Give a slot back."""
        self.taken -= 1
        self._let_in()

    def shrink(self, burst: int) -> None:
        """Halve the limit, once for each burst, as a session of `burst` was refused (the decrease of AIMD)."""
        if burst == self._burst:
            self._burst += 1
            self.limit = max(1.0, min(self.limit, self.taken) / 2)

    def grow(self) -> None:
        """Raise the limit by 1/limit, only if it is binding (additive increase of AIMD)."""
        if self.taken + 1 > self.limit:
            self.limit = min(self._most, self.limit + 1 / self.limit)
            self._let_in()

    def _let_in(self) -> None:
        while self._queue and (self._queue[0][1].done() or self.taken + 1 <= self.limit):
            _, let_in = heapq.heappop(self._queue)
            if not let_in.done():
                self.taken += 1
                let_in.set_result(self._burst)


class Ticket:
    """One rollout's turn. `async with` holds a slot, as often as it is let in `again`.

    `waited` are the seconds of its pauses, and of the tries that were refused, since a session last opened.
    """

    def __init__(self, limiter: AdaptiveLimiter, turn: int) -> None:
        self._limiter = limiter
        self._turn = turn
        self._burst = 0
        self._let_in = 0.0
        self._refusal: Unserved | None = None
        self._pauses = backoff(FIRST_PAUSE, LONGEST_PAUSE)
        self._lost: set[str] = set()  # faults since a session last opened
        self._lost_since = 0.0
        self.waited = 0.0

    async def __aenter__(self) -> None:
        self._refusal = None
        self._burst = await self._limiter.take(self._turn)
        self._let_in = time.monotonic()

    async def __aexit__(self, *exc: object) -> None:
        self._limiter.give()

    async def lent(self, wait: Callable[[], Awaitable[T]]) -> T:
        """Await `wait` without the slot: a session that waits for its host is idle, and others may play."""
        self._limiter.give()
        try:
            return await wait()
        finally:
            self._limiter.taken += 1  # at once: the session is open

    def lost_since(self, error: str) -> float | None:
        """Return since when (`time.monotonic`) the server has been away, if that is the `error`; None if it is not.

        A server that never answered is not away: its address is wrong.
        """
        return self._lost_since if error in self._lost and self._limiter.answered else None

    def lost_midway(self, error: str) -> bool:
        """Return whether `error` says that an open session was lost with its connection or server."""
        return self.lost_since(error) is not None and self._refusal is None

    def opened(self) -> None:
        """Note that the server took the session."""
        self._limiter.answered = True
        self._lost, self._pauses = set(), backoff(FIRST_PAUSE, LONGEST_PAUSE)
        self.waited = 0.0
        self._limiter.grow()

    def overloaded(self) -> None:
        """Note that the server says that it is busy."""
        self._limiter.answered = True
        self._limiter.shrink(self._burst)

    def lost(self, fault: SessionLost, since: float) -> None:
        """Note that the server is away, `since` that moment at least."""
        self._lost_since = self._lost_since if self._lost else since
        self._lost.add(str(fault))

    def refused(self, refusal: Unserved) -> None:
        """Note that the server did not take the session. It may be opened again."""
        self._refusal = refusal
        self.waited += time.monotonic() - self._let_in
        if isinstance(refusal, SessionLost):
            self.lost(refusal, self._let_in)
        else:
            self.overloaded()

    async def again(self, stopped: Callable[[], bool]) -> bool:
        """Pause and return True to try again: the last opening was refused, and patience is left.

        The pause ends early where the host's flag `stopped` is set meanwhile.
        """
        limiter, refusal = self._limiter, self._refusal
        patience = limiter.patience if limiter.answered else min(limiter.patience, FIRST_CONTACT)
        if refusal is None or self.waited >= patience:
            return False
        if isinstance(refusal, SessionLost):
            limiter.warnings.warn(f"{refusal}: rollouts of {limiter.name} wait for up to {patience:g} s")
        wish = min(refusal.retry_after or 0.0, LONGEST_WISH)
        pause = min(wish + next(self._pauses), patience - self.waited)
        self.waited += pause
        while pause > 0 and not stopped():
            await asyncio.sleep(min(pause, BLINK))
            pause -= BLINK
        return True


class LimitedSession:
    """A session that tells its ticket how the server took it."""

    def __init__(self, session: Session, ticket: Ticket) -> None:
        self._session = session
        self._ticket = ticket

    async def open(self, task: Task) -> Opening:
        """Open as `Session.open` does."""
        try:
            opening = await self._session.open(task)
        except Unserved as refusal:
            self._ticket.refused(refusal)
            raise
        self._ticket.opened()
        return opening

    async def call(self, call: ToolCall) -> ToolResult:
        """Call as `Session.call` does."""
        return await self._heed(self._session.call(call))

    async def answer(self, text: str) -> ToolResult:
        """Answer as `Session.answer` does."""
        return await self._heed(self._session.answer(text))

    async def close(self) -> None:
        """Close as `Session.close` does."""
        await self._session.close()

    async def _heed(self, answer: Awaitable[T]) -> T:
        try:
            return await answer
        except Overloaded:
            self._ticket.overloaded()
            raise
        except SessionLost as fault:
            self._ticket.lost(fault, time.monotonic())
            raise
