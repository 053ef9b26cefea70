"""The share of engine time that the loop loses: rollouts whose environment answers at once, against an engine's clock.

The engine sleeps as long as a real one would compute and adds up, for each rollout, the seconds that it asked for. An
engine that is never kept waiting needs as long as its longest rollout, or where fewer fit at once as long as all of
them on its slots; what the run takes beyond that is lost. A bare HTTP client that posts requests of the same length, in
the same rounds, shows what of it is the loopback's, the engine process's and this machine's.
"""

from __future__ import annotations

import asyncio
import itertools
import statistics
import time
from collections.abc import Awaitable, Callable

import aiohttp
import msgspec
from orl_core.limits import Limits
from orl_core.messages import Message, TextBlock, ToolResult, ToolSpec, text_message
from orl_core.trajectory import RolloutSpec, Trajectory
from orl_rollout.loop.loop import rollout
from orl_rollout.sglang.client import SglangEngine
from orl_testing import ScriptedSession
from rich.console import Console
from rich.table import Table

from benchmarks.servers import many_files, served
from benchmarks.world import CONTEXT, TASK, TURN, World, make_world

DECODE_SECONDS = 0.02  # for an id of the answer
PREFILL_SECONDS = 0.0002  # for a new id of the prompt
SAMPLING = {"temperature": 1.0, "max_new_tokens": 4096}


PARAMETERS = {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}
TOOL = ToolSpec(name="run", description="Run a command.", parameters=PARAMETERS)
OPENING = text_message("user", "Find out why the tests fail.")


def instant(said: str, *before: Message) -> ScriptedSession:
    """A session that answers at once, with messages `before` its opening."""
    result = ToolResult(name="run", content=(TextBlock(text=said),))
    return ScriptedSession(itertools.repeat(result), messages=(*before, OPENING), tools=(TOOL,))


async def ours(world: World, url: str, rollouts: int, turns: int) -> list[Trajectory]:
    """Play `rollouts` at once."""
    limits = Limits(
        max_turns=turns, turn_tokens=4096, rollout_tokens=CONTEXT, context_tokens=CONTEXT, tool_result_tokens=4096
    )
    async with SglangEngine(url, context_tokens=CONTEXT) as engine:
        return await asyncio.gather(
            *(
                rollout(
                    RolloutSpec(task=TASK, rollout_id=f"{number:032d}", limits=limits, sampling=SAMPLING),
                    session=instant(world.said),
                    renderer=world.renderer,
                    engine=engine,
                )
                for number in range(rollouts)
            )
        )


async def bare(world: World, url: str, rollouts: int, turns: int) -> None:
    """Post bodies of the same lengths, made before, and read the answers."""
    ids = [world.action[0]] * TURN
    bodies = [
        msgspec.json.encode({"input_ids": ids * turn, "sampling_params": SAMPLING, "return_logprob": True})
        for turn in range(1, turns + 1)
    ]
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:

        async def play(number: int) -> None:
            headers = {"X-SMG-Routing-Key": f"{number:032d}", "Content-Type": "application/json"}
            for body in bodies:
                async with http.post(f"{url}/generate", data=body, headers=headers) as response:
                    await response.read()

        await asyncio.gather(*(play(number) for number in range(rollouts)))


async def lost(play: Callable[[], Awaitable[object]], url: str, slots: int) -> float:
    """The share of the engine's time that `play` loses."""
    started = time.monotonic()
    await play()
    wall = time.monotonic() - started
    async with aiohttp.ClientSession() as http, http.get(f"{url}/stats") as response:
        books = await response.json()
    return 1 - max(books["longest"], books["total"] / slots if slots else 0.0) / wall


def run(console: Console, *, quick: bool) -> list[str]:
    """Measure and print; nothing to complain about."""
    cases = ((4, 0), (4, 2)) if quick else ((64, 0), (256, 0), (1000, 0), (1000, 500))  # rollouts, slots
    turns, rounds = (2, 1) if quick else (3, 3)
    many_files()
    world = make_world(quick=quick)
    decode = 0.001 if quick else DECODE_SECONDS
    table = Table("rollouts", "in the engine at once", "lost by the loop", "by a bare client", "difference")
    for rollouts, slots in cases:
        shares = asyncio.run(compare(world, rollouts, turns, slots, rounds, decode))
        mine, other = (statistics.median(values) for values in shares)
        place = f"{slots or rollouts:,}"
        table.add_row(f"{rollouts:,}", place, f"{mine:.1%}", f"{other:.1%}", f"{mine - other:.1%}")
    seconds = (TURN - len(world.action)) * PREFILL_SECONDS + len(world.action) * decode
    console.print(f"{turns} turns of {TURN} ids, {seconds:.1f} s in the engine each; medians of {rounds} rounds")
    console.print(table)
    return []


async def compare(
    world: World, rollouts: int, turns: int, slots: int, rounds: int, decode: float
) -> tuple[list[float], list[float]]:
    """Shares lost by ours and by the bare client, round by round."""
    mine: list[float] = []
    other: list[float] = []
    settings = {"slots": slots, "decode_seconds": decode, "prefill_seconds": PREFILL_SECONDS}
    with served("engine", answer=world.action, **settings) as url:
        await ours(world, url, 2, 1)
        await lost(lambda: bare(world, url, 2, 1), url, slots)
        for _ in range(rounds):
            mine.append(await lost(lambda: ours(world, url, rollouts, turns), url, slots))
            other.append(await lost(lambda: bare(world, url, rollouts, turns), url, slots))
    return mine, other
