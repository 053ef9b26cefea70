"""A thousand rollouts in flight in one process: faults, the lag of the event loop, memory; servers in other processes.

They begin one after the other within seconds, the engine taking longer than that for an answer, so that all are under
way together and the servers, which share a few cores with the client, are not what is measured; and then all at the
same moment, as a trainer begins a batch, where every answer comes with a thousand others. The lag is that
of a task that sleeps 5 ms again and again; next to it is how much of it the event loop's thread was computing, the
rest being other processes' turn on the core, and the lag of the same task on an idle loop before. Memory is the most
that the process held, less what it held after a few rollouts had warmed it up.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import aiohttp
from orl_rollout.results.outcome import Outcome
from rich.console import Console
from rich.table import Table

from benchmarks.servers import many_files, served
from benchmarks.world import faults, make_world, playing

TICK = 0.005  # seconds
TARGET_LAG_MS = 50.0
ENVIRONMENT_SERVERS = 2
DECODE_SECONDS = 0.08  # for an id of the answer
STARTS = {"one after the other": 12.0, "all at once": 0.0}  # seconds in which all rollouts begin
PAGE_KIB = 4


def resident() -> float:
    """MiB that this process holds in memory."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * PAGE_KIB / 1024


class Ticker:
    """Sleeps TICK again and again: `lags` in ms, `busy` the thread's CPU in each sleep in ms, `memory` the most MiB.

    Use it by `async with`.
    """

    def __init__(self) -> None:
        self.lags: list[float] = []
        self.busy: list[float] = []
        self.memory = 0.0

    async def __aenter__(self) -> Ticker:
        self._task = asyncio.create_task(self._tick())
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._task.cancel()
        await asyncio.wait({self._task})

    async def _tick(self) -> None:
        while True:
            due, cpu = time.monotonic() + TICK, time.thread_time()
            await asyncio.sleep(TICK)
            self.busy.append(1000 * (time.thread_time() - cpu))
            self.lags.append(1000 * (time.monotonic() - due))
            if len(self.lags) % 20 == 0:
                self.memory = max(self.memory, resident())


def percentile(values: list[float], share: float) -> float:
    """The value that `share` of the values do not exceed."""
    return sorted(values)[min(int(share * len(values)), len(values) - 1)]


def run(console: Console, *, quick: bool) -> list[str]:
    """Measure and print; return what went wrong: any fault at all."""
    rollouts, turns = (20, 2) if quick else (1000, 3)
    complaints: list[str] = []
    for name, seconds in STARTS.items():
        console.print(f"{rollouts:,} rollouts that begin {name}")
        complaints += asyncio.run(fly(console, rollouts, turns, seconds / 60 if quick else seconds, quick=quick))
    return complaints


async def fly(console: Console, rollouts: int, turns: int, start_seconds: float, *, quick: bool) -> list[str]:
    """Play `rollouts` that begin within `start_seconds`, print the table, and return what went wrong."""
    many_files()
    world = make_world(quick=quick)
    latency = {"decode_seconds": 0.001 if quick else DECODE_SECONDS, "prefill_seconds": 0.0002}
    pause = start_seconds / rollouts

    async def begin(number: int) -> Outcome:
        await asyncio.sleep(number * pause)
        return await player.play(turns)

    with ExitStack() as stack:
        engine = stack.enter_context(served("engine", answer=world.action, **latency))
        environment = {"text": world.said, "seconds": 0.1}
        servers = [
            stack.enter_context(served("environment", **environment))
            for _ in range(1 if quick else ENVIRONMENT_SERVERS)
        ]
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        async with playing(world, engine, servers, Path(folder) / "journal.jsonl") as player:
            await asyncio.gather(*(player.play(1) for _ in range(8)))
            await _books(engine)
            async with Ticker() as idle:
                await asyncio.sleep(0.5 if quick else 3.0)
            before, started = resident(), time.monotonic()
            cpu, here = time.process_time(), time.thread_time()
            async with Ticker() as ticker:
                outcomes = await asyncio.gather(*(begin(number) for number in range(rollouts)))
            wall = time.monotonic() - started
            cpu, here = time.process_time() - cpu, time.thread_time() - here
        books = await _books(engine)
    flight = Flight(outcomes, turns, wall, loop_cpu=here, other_cpu=cpu - here, memory=before)
    console.print(flight.table(books, ticker, idle))
    return faults(outcomes, turns)


class Flight(NamedTuple):
    """The rollouts that were played, and the seconds and MiB that they took. `memory` is that before they began."""

    outcomes: list[Outcome]
    turns: int
    wall: float
    loop_cpu: float
    other_cpu: float
    memory: float

    def table(self, books: Mapping[str, float], ticker: Ticker, idle: Ticker) -> Table:
        """Return the table of the figures; `books` are the engine's."""
        rollouts = len(self.outcomes)
        table = Table("", "measured", "target")
        table.add_row("rollouts, turns of each", f"{rollouts:,} of {self.turns}", "")
        table.add_row("faults", f"{sum(bool(outcome.trajectory.error) for outcome in self.outcomes):,}", "0")
        table.add_row("most requests in the engine at once", f"{books['most']:,}", "")
        table.add_row("wall, s (longest in the engine)", f"{self.wall:.1f} ({books['longest']:.1f})", "")
        per_turn = 1000 / rollouts / self.turns
        for where, seconds in (("the event loop's thread", self.loop_cpu), ("other threads", self.other_cpu)):
            table.add_row(f"CPU of {where}, s (ms a turn)", f"{seconds:.1f} ({seconds * per_turn:.2f})", "")
        for name, share in (("median", 0.5), ("99th percentile", 0.99), ("largest", 1.0)):
            lag, busy, calm = (percentile(values, share) for values in (ticker.lags, ticker.busy, idle.lags))
            target = f"{TARGET_LAG_MS:g}" if share == 0.99 else ""
            table.add_row(f"lag, ms: {name} (computing; idle loop)", f"{lag:.1f} ({busy:.1f}; {calm:.1f})", target)
        table.add_row("memory, MiB before, most", f"{self.memory:.0f}, {ticker.memory:.0f}", "")
        table.add_row("memory per rollout, KiB", f"{1024 * (ticker.memory - self.memory) / rollouts:.0f}", "")
        played = [sum(len(t.observation) + len(t.action_ids) for t in o.trajectory.turns) for o in self.outcomes]
        table.add_row("ids of a finished rollout, mean", f"{statistics.fmean(played):,.0f}", "")
        return table


async def _books(engine: str) -> dict[str, float]:
    """Return the figures of the engine for the requests since the last question."""
    async with aiohttp.ClientSession() as http, http.get(f"{engine}/stats") as response:
        return await response.json()
