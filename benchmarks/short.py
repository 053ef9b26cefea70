"""Client CPU of short episodes, all at once, against a bare loop over the SDK's own client, in the same rounds.

256 episodes of five turns of 200 ids begin at the same moment. CPU is user and system time of this process, all
threads; the servers are other processes. The bare loop is `benchmarks.cookbook` with the SDK's sessions.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import aiohttp
from openreward.api.environments.client import AsyncEnvironmentsAPI
from rich.console import Console
from rich.table import Table

from benchmarks import cookbook
from benchmarks.servers import many_files, served
from benchmarks.world import faults, make_world, playing

TURNS, TURN, ACTION = 5, 200, 100
TARGET = 1.15


async def compare(episodes: int, rounds: int, *, quick: bool) -> tuple[dict[str, list[float]], list[str]]:
    """CPU ms a turn by loop, a value for each round; and faults."""
    world = make_world(quick=quick, turn=TURN, action_ids=ACTION)
    complaints: list[str] = []
    with (
        served("engine", answer=world.action, keepalive_seconds=60.0) as engine,
        served("environment", text=world.said, seconds=0.0) as server,
        tempfile.TemporaryDirectory() as folder,
    ):
        async with (
            playing(world, engine, [server], Path(folder) / "journal") as player,
            AsyncEnvironmentsAPI(server, "") as environments,
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http,
        ):
            sdk = cookbook.SdkClient(environments.get("bench/Shell", variant="shell"))

            async def ours() -> None:
                complaints.extend(faults([await player.play(TURNS)], TURNS))

            async def bare() -> None:
                await cookbook.play(world, sdk, http, engine, TURNS)

            loops: dict[str, Callable[[], Awaitable[None]]] = {"orl": ours, "bare": bare}
            costs: dict[str, list[float]] = {name: [] for name in loops}
            for number in range(rounds + 1):
                for name, play in loops.items():
                    started = time.process_time()
                    await asyncio.gather(*(play() for _ in range(episodes)))
                    if number:  # the first round warms up
                        costs[name].append(1000 * (time.process_time() - started) / episodes / TURNS)
    return costs, complaints


def run(console: Console, *, quick: bool) -> list[str]:
    """Measure and print; what went wrong."""
    many_files()
    os.environ.setdefault("OPENREWARD_API_KEY", "a-key-of-the-benchmark")  # so that there is a secret to search for
    episodes, rounds = (16, 1) if quick else (256, 5)
    costs, complaints = asyncio.run(compare(episodes, rounds, quick=quick))
    mine, other = (statistics.median(costs[name]) for name in ("orl", "bare"))
    ratios = sorted(a / b for a, b in zip(costs["orl"], costs["bare"], strict=True))
    table = Table(title=f"{episodes} episodes at once, {TURNS} turns of {TURN} ids; {rounds} rounds, medians")
    for column in ("orl, ms a turn", "bare, ms a turn", "ratio", "least", "most", "target"):
        table.add_column(column, justify="right")
    ratio = statistics.median(ratios)
    table.add_row(*(f"{number:.2f}" for number in (mine, other, ratio, ratios[0], ratios[-1], TARGET)))
    console.print(table)
    return complaints
