"""AdaptiveLimiter: how many sessions of an environment are in flight. Counts, not times."""

from __future__ import annotations

import asyncio
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from orl_core.messages import ToolCall
from orl_core.task import Task
from orl_rollout.loop.clock import never
from orl_rollout.loop.session import Overloaded, SessionLost, Unserved
from orl_rollout.runtime import admission
from orl_rollout.runtime.admission import AdaptiveLimiter, LimitedSession
from orl_testing import ScriptedSession

TASK = Task(env_name="A/B", deployment_name="A/B")


async def turn_over() -> None:
    """Let every task go as far as it can."""
    for _ in range(10):
        await asyncio.sleep(0)


async def test_slots_are_given_in_the_order_of_asking():
    limiter, order = AdaptiveLimiter(2), list[int]()
    held = asyncio.Event()

    async def rollout(number: int) -> None:
        async with limiter.ticket():
            order.append(number)
            await held.wait()

    async with asyncio.TaskGroup() as tasks:
        for number in range(5):
            tasks.create_task(rollout(number))
        await turn_over()
        assert (order, limiter.taken, limiter.waiting) == ([0, 1], 2, 3)
        held.set()
    assert (order, limiter.taken) == ([0, 1, 2, 3, 4], 0)


async def test_who_was_refused_comes_before_who_came_later():
    limiter, order = AdaptiveLimiter(1), list[str]()
    first, second = limiter.ticket(), limiter.ticket()
    async with first:
        waiting = asyncio.create_task(_enter(second, order, "second"))
        await turn_over()
        third = asyncio.create_task(_enter(limiter.ticket(), order, "third"))
        again = asyncio.create_task(_enter(first, order, "first"))  # as after a pause
        await turn_over()
        assert order == []
    await asyncio.gather(waiting, third, again)
    assert order == ["first", "second", "third"]


async def _enter(ticket: admission.Ticket, order: list[str], name: str) -> None:
    async with ticket:
        order.append(name)


async def test_a_burst_halves_the_limit_once():
    limiter = AdaptiveLimiter(None)
    tickets = [limiter.ticket() for _ in range(16)]
    for ticket in tickets:
        await ticket.__aenter__()
    assert limiter.limit == math.inf
    for ticket in tickets[4:]:
        ticket.refused(Overloaded("full"))
        await ticket.__aexit__(None, None, None)
    assert (limiter.limit, limiter.taken) == (8.0, 4)
    entering = [asyncio.create_task(ticket.__aenter__()) for ticket in tickets[4:9]]
    await turn_over()
    assert [task.done() for task in entering] == [True] * 4 + [False]
    tickets[4].refused(Overloaded("full"))
    assert limiter.limit == 4.0
    entering[4].cancel()


async def test_limit_grows_back_to_the_configured_one_at_most():
    limiter = AdaptiveLimiter(8)
    tickets = [limiter.ticket() for _ in range(8)]
    for ticket in tickets:
        await ticket.__aenter__()
    tickets[0].overloaded()
    assert limiter.limit == 4.0
    opened = 0
    while limiter.limit < 8 and opened < 1000:
        tickets[0].opened()
        opened += 1
    assert limiter.limit == 8.0
    assert 4 * 4 <= opened <= 8 * 5, "one more for every limit's worth of sessions"


async def test_a_limit_that_nobody_feels_does_not_grow():
    limiter = AdaptiveLimiter(None)
    ticket = limiter.ticket()
    async with ticket:
        ticket.overloaded()
    limiter.limit = 5.0
    async with ticket:
        ticket.opened()
    assert limiter.limit == 5.0


@pytest.mark.parametrize("moment", ["waiting", "let in"])
async def test_a_cancelled_place_passes_its_slot_on(moment: str):
    limiter = AdaptiveLimiter(1)
    order = list[str]()
    async with limiter.ticket():
        gone = asyncio.create_task(_enter(limiter.ticket(), order, "gone"))
        after = asyncio.create_task(_enter(limiter.ticket(), order, "after"))
        await turn_over()
        if moment == "waiting":
            gone.cancel()
            await turn_over()
    gone.cancel()  # it waited until now: let in, and cancelled before it could run
    await asyncio.wait({gone, after}, timeout=10)
    assert gone.cancelled()
    assert (order, limiter.taken, limiter.waiting) == (["after"], 0, 0)


class Crowd:
    """Rollouts that come, are let in, open, are refused, leave and are cancelled; checked after every step."""

    def __init__(self, most: int | None) -> None:
        self.most = most
        self.limiter = AdaptiveLimiter(most)
        self.inside: list[admission.Ticket] = []
        self.waiting: dict[asyncio.Task[None], admission.Ticket] = {}

    async def step(self, what: str, number: int) -> None:
        if what == "come":
            ticket = self.limiter.ticket()
            self.waiting[asyncio.create_task(ticket.__aenter__())] = ticket
        elif what == "cancel" and self.waiting:
            list(self.waiting)[number % len(self.waiting)].cancel()
        elif what in {"open", "refuse", "leave"} and self.inside:
            await self.happen(what, self.inside[number % len(self.inside)])
        await turn_over()
        self.check()

    async def happen(self, what: str, ticket: admission.Ticket) -> None:
        limit, taken = self.limiter.limit, self.limiter.taken
        if what == "open":
            ticket.opened()
            assert limit <= self.limiter.limit <= limit + 1
            return
        if what == "refuse":
            ticket.refused(Overloaded("full"))
            assert self.limiter.limit in {limit, max(1.0, min(limit, taken) / 2)}
        self.inside.remove(ticket)
        await ticket.__aexit__(None, None, None)

    def check(self) -> None:
        for task in [task for task in self.waiting if task.done()]:
            ticket = self.waiting.pop(task)
            if not task.cancelled():
                assert self.limiter.taken <= self.limiter.limit, "let in above the limit"
                self.inside.append(ticket)
        assert (self.limiter.taken, self.limiter.waiting) == (len(self.inside), len(self.waiting))
        assert not self.waiting or self.limiter.taken + 1 > self.limiter.limit, "waits although a slot is free"
        assert 1 <= self.limiter.limit <= (self.most or math.inf)

    async def play(self, steps: list[tuple[str, int]]) -> None:
        for what, number in steps:
            await self.step(what, number)
        for task in self.waiting:
            task.cancel()
        await asyncio.gather(*self.waiting, return_exceptions=True)


STEPS = st.tuples(st.sampled_from(["come", "leave", "open", "refuse", "cancel"]), st.integers(0, 50))


@given(st.one_of(st.none(), st.integers(1, 6)), st.lists(STEPS, max_size=60))
def test_limit_holds_and_no_free_slot_is_left(most: int | None, steps: list[tuple[str, int]]):
    asyncio.run(Crowd(most).play(steps))


async def test_a_refused_opening_is_tried_again_and_nothing_else():
    limiter = AdaptiveLimiter(None)
    ticket = limiter.ticket()
    async with ticket:
        pass
    assert not await ticket.again(never)
    async with ticket:
        ticket.overloaded()  # by a call
    assert not await ticket.again(never)
    async with ticket:
        ticket.refused(Overloaded("full"))
    assert await ticket.again(never)


@pytest.mark.parametrize(
    ("answered", "refusal", "patience"),
    [
        (True, Overloaded("full", retry_after=3600.0), 600.0),
        (True, SessionLost("away"), 600.0),
        (False, Overloaded("full"), 600.0),
        (False, SessionLost("away"), admission.FIRST_CONTACT),
    ],
)
async def test_patience_ends_and_the_hosts_flag_ends_a_pause(answered: bool, refusal: Unserved, patience: float):
    limiter = AdaptiveLimiter(None, patience=600.0)
    limiter.answered = answered
    ticket = limiter.ticket()
    for _ in range(1000):
        async with ticket:
            ticket.refused(refusal)
        if not await ticket.again(lambda: True):
            break
    assert ticket.waited == pytest.approx(patience, abs=1.0)


async def test_server_away_lowers_no_limit_and_is_one_warning(caplog: pytest.LogCaptureFixture):
    limiter = AdaptiveLimiter(8, name="A/B")
    limiter.answered = True
    for _ in range(8):
        ticket = limiter.ticket()
        async with ticket:
            ticket.refused(SessionLost("no answer"))
        assert await ticket.again(lambda: True)
    assert limiter.limit == 8.0
    (said,) = [record for record in caplog.records if record.levelname == "WARNING"]
    assert "A/B" in said.getMessage()


async def test_patience_begins_again_with_each_session():
    limiter = AdaptiveLimiter(None)
    ticket = limiter.ticket()
    async with ticket:
        ticket.refused(SessionLost("away"))
    assert await ticket.again(lambda: True)
    assert ticket.lost_since("away") is None  # by a server that never answered
    async with ticket:
        ticket.opened()
    assert ticket.waited == 0.0
    async with ticket:
        ticket.refused(SessionLost("away"))
    assert ticket.lost_since("away") is not None
    assert ticket.lost_since("another fault") is None


async def test_call_answered_429_lowers_limit_and_is_not_retried():
    limiter = AdaptiveLimiter(4)
    ticket = limiter.ticket()
    inner = ScriptedSession([Overloaded("full")])
    async with ticket:
        session = LimitedSession(inner, ticket)
        await session.open(TASK)
        with pytest.raises(Overloaded):
            await session.call(ToolCall(name="act"))
        await session.close()
    assert (limiter.limit, len(inner.calls), inner.closed) == (1.0, 1, 1)
    assert not await ticket.again(never)
