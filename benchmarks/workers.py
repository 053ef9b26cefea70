"""Turns a second with 1, 2 and 4 processes of `rollout.workers`, on a host with cores for them.

A server of the environment and an engine for each four cores, which answer at once, so that the client is the bound.
Episodes of `TURNS` turns go through `open_player`, as in a run, journals included.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path

from orl_core.config import decode_config
from orl_rollout.results.outcome import Outcome
from orl_rollout.runtime.runtime import RolloutRequest
from orl_rollout.runtime.workers import open_player
from orl_rollout.sglang.client import SglangEngine
from rich.console import Console
from rich.table import Table

from benchmarks.servers import many_files, served
from benchmarks.world import CONTEXT, TASK, faults, make_world

TURNS, AT_ONCE, WORKERS = 4, 512, (1, 2, 4)


async def measure(
    workers: int, rollouts: int, environments: Sequence[str], engines: Sequence[str], model: Path
) -> tuple[float, float, list[str]]:
    """Turns a second, the share of a core that this process takes meanwhile, and faults."""
    environment = {"base_url": list(environments), "max_turns": TURNS, "max_concurrency": None}
    budgets = {"workers": workers, "context_tokens": CONTEXT}
    config = decode_config({"environments": {TASK.env_name: environment}, "rollout": budgets}, "benchmarks")
    places = asyncio.Semaphore(AT_ONCE)
    with tempfile.TemporaryDirectory() as folder:
        async with AsyncExitStack() as life:
            clients = [await life.enter_async_context(SglangEngine(url, context_tokens=CONTEXT)) for url in engines]
            player = await life.enter_async_context(open_player(config, str(model), folder, 1))

            async def play(name: str, count: int) -> list[str]:
                async def one(number: int) -> Outcome:
                    asked = RolloutRequest(task=TASK, rollout_id=f"{name}{number}", sampling={})
                    async with places:
                        return await player.play(asked, clients[number % len(clients)])

                return faults(await asyncio.gather(*map(one, range(count))), TURNS)

            complaints = await play("warm", rollouts // 8)
            began, cpu = time.monotonic(), time.process_time()
            complaints += await play("run", rollouts)
            seconds, cpu = time.monotonic() - began, time.process_time() - cpu
    return rollouts * TURNS / seconds, cpu / seconds, complaints


def run(console: Console, *, quick: bool) -> list[str]:
    """Measure and print; what went wrong."""
    many_files()
    world, rollouts = make_world(quick=True, turn=80, action_ids=40), 16 if quick else 3200
    count, complaints = max(2, (os.cpu_count() or 1) // 4), list[str]()
    table = Table("processes", "turns a second", "CPU of the parent")
    with ExitStack() as life, tempfile.TemporaryDirectory() as model:
        world.hf.save_pretrained(model)
        shell = {"text": world.said, "seconds": 0.0}
        environments = [life.enter_context(served("environment", **shell)) for _ in range(count)]
        engines = [life.enter_context(served("engine", answer=world.action)) for _ in range(count)]
        for workers in WORKERS:
            rate, share, wrong = asyncio.run(measure(workers, rollouts, environments, engines, Path(model)))
            table.add_row(str(workers), f"{rate:,.0f}", f"{share:.0%}")
            complaints += wrong
    console.print(f"{rollouts:,} episodes of {TURNS} turns, {AT_ONCE} at once; {count} environment servers and engines")
    console.print(table)
    return complaints
