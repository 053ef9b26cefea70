"""The fair queue: one piece of work a round, in order, and nobody waits who is alone."""

from __future__ import annotations

import asyncio

from orl_rollout.loop.fair_queue import take_turn

MANY = 200


class Rounds:
    """Counts the rounds of the event loop."""

    def __init__(self) -> None:
        self.now = 0
        self._loop = asyncio.get_running_loop()
        self._handle = self._loop.call_soon(self._count)

    def _count(self) -> None:
        self.now += 1
        self._handle = self._loop.call_soon(self._count)

    def stop(self) -> None:
        self._handle.cancel()


async def test_many_that_come_at_once_work_one_a_round_and_in_order() -> None:
    rounds = Rounds()
    worked: list[tuple[int, int]] = []

    async def work(number: int) -> None:
        await take_turn()
        worked.append((number, rounds.now))

    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        for number in range(MANY):
            group.create_task(work(number))
    rounds.stop()
    assert [number for number, _ in worked] == list(range(MANY))
    assert len({at for _, at in worked}) == MANY
    assert rounds.now <= 3 * MANY


async def test_one_alone_goes_through_at_once() -> None:
    rounds = Rounds()
    for _ in range(5):
        before = rounds.now
        await take_turn()
        assert rounds.now == before
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    rounds.stop()


async def test_who_is_cancelled_while_waiting_takes_nobodys_turn() -> None:
    through: list[int] = []

    async def work(number: int) -> None:
        await take_turn()
        through.append(number)

    tasks = [asyncio.create_task(work(number)) for number in range(10)]
    await asyncio.sleep(0)
    for task in tasks[1:9]:
        task.cancel()
    async with asyncio.timeout(30):
        await asyncio.wait(tasks)
        await take_turn()
    assert through == [0, 9]


def test_every_event_loop_has_its_own() -> None:
    async def through() -> bool:
        await asyncio.wait_for(take_turn(), 30)
        return True

    assert asyncio.run(through())  # which ends before its next round
    assert asyncio.run(through())
