"""Client CPU per turn and its slope in history, against a cookbook's loop in the same rounds.

Whole rollouts of 5 to 80 turns of 505 ids go through `Runtime.play`, SglangEngine and OpenReward's real client, journal
included. CPU is user and system time of this process, all threads. A rollout's cost is fitted as

    opening + turns * (constant + slope * history / 1,000)

where opening and closing are measured by rollouts without a turn, in the same rounds.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import aiohttp
from orl_rollout.openreward import OpenRewardClient
from rich.console import Console
from rich.table import Table

from benchmarks import cookbook
from benchmarks.servers import served
from benchmarks.world import TURN, World, config_of, faults, make_world, playing

SIDE_BY_SIDE = 4  # rollouts
TARGET_MS, TARGET_SLOPE = 2.0, 0.02
Played = Callable[[int], Awaitable[list[str]]]  # plays one rollout of so many turns; what went wrong


async def measure(play: Played, turns: int, rollouts: int) -> tuple[float, list[str]]:
    """Seconds of CPU per rollout, and faults."""
    left = iter(range(rollouts))
    complaints: list[str] = []

    async def worker() -> None:
        for _ in left:
            complaints.extend(await play(turns))

    started = time.process_time()
    async with asyncio.TaskGroup() as group:
        for _ in range(min(SIDE_BY_SIDE, rollouts)):
            group.create_task(worker())
    return (time.process_time() - started) / rollouts, complaints


def fit(costs: dict[int, float]) -> tuple[float, float]:
    """(constant, slope) of a turn's cost in ms: least squares over (mean history in thousands, ms per turn)."""
    points = [(TURN * (turns - 1) / 2000, 1000 * (cost - costs[0]) / turns) for turns, cost in costs.items() if turns]
    slope, constant = statistics.linear_regression(*zip(*points, strict=True))
    return constant, slope


async def compare(
    world: World, lengths: Sequence[int], rounds: int, sample_turns: int
) -> tuple[dict[str, dict[int, list[float]]], list[str]]:
    """CPU seconds per rollout by loop and length, a value for each round; faults."""
    settings = {"text": world.said, "seconds": 0.0}
    with (
        served("engine", answer=world.action) as engine,
        served("environment", **settings) as server,
        tempfile.TemporaryDirectory() as folder,
    ):
        async with (
            playing(world, engine, [server], Path(folder) / "journal.jsonl") as player,
            OpenRewardClient(config_of(server, 1)) as client,
            aiohttp.ClientSession() as http,
        ):

            async def ours(turns: int) -> list[str]:
                return faults([await player.play(turns)], turns)

            async def naive(turns: int) -> list[str]:
                await cookbook.play(world, client, http, engine, turns)
                return []

            loops: dict[str, Played] = {"orl": ours, "cookbook": naive}
            for play in loops.values():
                await measure(play, lengths[0], SIDE_BY_SIDE)
            costs = {name: {turns: [] for turns in (0, *lengths)} for name in loops}
            complaints: list[str] = []
            for _ in range(rounds):
                for turns in (0, *lengths):
                    for name, play in loops.items():
                        share = 1 if name == "orl" else 4  # the other needs many times the CPU
                        cost, wrong = await measure(play, turns, max(1, sample_turns // share // max(turns, 5)))
                        costs[name][turns].append(cost)
                        complaints += wrong
    return costs, complaints


def run(console: Console, *, quick: bool) -> list[str]:
    """Measure and print; what went wrong."""
    lengths, rounds, sample_turns = ((2, 6), 1, 12) if quick else ((5, 10, 20, 40, 80), 5, 160)
    world = make_world(quick=quick)
    costs, complaints = asyncio.run(compare(world, lengths, rounds, sample_turns))
    medians = {name: {turns: statistics.median(values) for turns, values in of.items()} for name, of in costs.items()}
    console.print(
        f"a turn: {len(world.action)} ids of action, {world.observation} of observation; {rounds} interleaved rounds, "
        f"{SIDE_BY_SIDE} rollouts side by side; CPU of the client's process, medians"
    )
    table = Table("turns", "history at the end", "orl, ms a turn", "of these opening", "cookbook, ms a turn", "ratio")
    for turns in lengths:
        mine, other = (1000 * medians[name][turns] / turns for name in ("orl", "cookbook"))
        opening = 1000 * medians["orl"][0] / turns
        table.add_row(
            *(str(turns), f"{turns * TURN:,}", f"{mine:.2f}", f"{opening:.2f}", f"{other:.2f}", f"{other / mine:.1f}x")
        )
    console.print(table)
    table = Table("fit", "orl", "cookbook", "target")
    fits = {name: fit(of) for name, of in medians.items()}
    table.add_row("opening and closing, ms a rollout", *(f"{1000 * of[0]:.2f}" for of in medians.values()), "")
    table.add_row("a turn without history, ms", *(f"{a:.2f}" for a, _ in fits.values()), f"{TARGET_MS}")
    table.add_row("ms a turn per 1,000 ids of history", *(f"{b:.3f}" for _, b in fits.values()), f"{TARGET_SLOPE}")
    console.print(table)
    return complaints
