"""Agents at the gateway: CPU of a turn at a long history against the built-in loop's.

A turn has 505 ids. CPU is that of this process alone, all threads, for each request to the engine, over twenty turns
around a history. SGLang's stand-in and the agents are other processes: an agent builds and sends its whole history with
each request there, and the gateway's HTTP server is here. Both players ask for the same ids, four rollouts side by
side, in the same rounds; a ratio is the median of the rounds' ratios. The built-in loop calls its tool in this process,
the agent answers itself. Cores are shared with the other processes, so their work on caches counts a little.
"""

from __future__ import annotations

import asyncio
import itertools
import statistics
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from orl_core.limits import Limits
from orl_core.messages import TextBlock, ToolResult, ToolSpec, text_message
from orl_core.trajectory import Generation, RolloutSpec, Trajectory
from orl_gateway import AgentEpisode
from orl_gateway.agent.agent_player import AgentPlayer
from orl_rollout.loop.engine import Engine
from orl_rollout.loop.loop import rollout
from orl_rollout.runtime.runtime import Player
from orl_rollout.sglang.client import SglangEngine
from orl_testing import ScriptedSession
from rich.console import Console
from rich.table import Table

from benchmarks.servers import served, start
from benchmarks.world import CONTEXT, TASK, TURN, World, make_world

TARGET_RATIO = 1.5
WINDOWS = (10, 60, 110)  # turns at whose history a turn is measured
AROUND = 10  # turns on each side of them
SIDE_BY_SIDE = 4  # rollouts


class Clocked:
    """An engine that notes the CPU seconds of this process at each request to another one."""

    def __init__(self, engine: Engine) -> None:
        self.at: list[float] = []
        self._engine = engine

    async def generate(self, ids: Sequence[int], sampling: Mapping[str, Any], *, key: str) -> Generation:
        self.at.append(time.process_time())
        return await self._engine.generate(ids, sampling, key=key)

    def milliseconds(self, turn: int) -> float:
        """Return what a turn around `turn` took, with SIDE_BY_SIDE rollouts at once."""
        first = max(0, turn - AROUND) * SIDE_BY_SIDE
        last = min(len(self.at), (turn + AROUND) * SIDE_BY_SIDE) - 1
        return 1000 * (self.at[last] - self.at[first]) / (last - first)


async def talks(world: World, turns: int, episode: AgentEpisode) -> None:
    """Let the agent in its process play."""
    await asyncio.to_thread(_talk, world, turns, episode.base_url)


def _talk(world: World, turns: int, url: str) -> None:
    with start("agent", {"base_url": url, "turns": turns, "text": world.said}) as process:
        if process.wait():
            raise RuntimeError(f"the agent ended with {process.returncode}")


async def play(player: Player, world: World, turns: int, engine: Engine) -> Trajectory:
    """Play one episode of `turns` turns."""
    tool = ToolSpec(name="run", parameters={"type": "object", "properties": {}})
    results = [ToolResult(name="run", content=(TextBlock(text=world.said),)) for _ in range(turns)]
    opening = (text_message("user", world.said),)
    session = ScriptedSession(results, messages=opening, tools=(tool,))
    limits = Limits(max_turns=turns, context_tokens=CONTEXT, rollout_tokens=CONTEXT)
    job = RolloutSpec(task=TASK, rollout_id=f"r{next(_NUMBERS)}", limits=limits, sampling={})
    return await player(job, session=session, renderer=world.renderer, engine=engine)


_NUMBERS = itertools.count()


def run(console: Console, *, quick: bool) -> list[str]:
    """Measure and print; what went wrong."""
    world = make_world(quick=quick)
    turns, rounds = (12, 1) if quick else (max(WINDOWS) + AROUND + 2, 9)
    with served("engine", answer=world.action, decode_seconds=0.0, prefill_seconds=0.0) as url:
        return asyncio.run(side_by_side(console, world, url, turns=turns, rounds=rounds))


async def side_by_side(console: Console, world: World, url: str, *, turns: int, rounds: int) -> list[str]:
    """Measure a turn of both at several histories; what went wrong."""
    agent = AgentPlayer(partial(talks, world, turns))
    players: dict[str, Player] = {"built-in loop": rollout, "agent": agent}
    windows = [window for window in WINDOWS if window + 1 < turns]
    costs = {(name, window): list[float]() for name in players for window in windows}
    complaints: list[str] = []
    async with SglangEngine(url, context_tokens=CONTEXT) as sglang:
        for _, (name, player) in itertools.product(range(rounds), players.items()):
            engine = Clocked(sglang)
            played = await asyncio.gather(*(play(player, world, turns, engine) for _ in range(SIDE_BY_SIDE)))
            complaints += [f"{name}: {one.error or len(one.turns)}" for one in played if len(one.turns) != turns]
            for window in windows:
                costs[name, window].append(engine.milliseconds(window))
    table = Table("turn", "history, ids", *(f"{name}, ms" for name in players), f"ratio (target {TARGET_RATIO:g})")
    for window in windows:
        loop, gateway = (costs[name, window] for name in players)
        ratio = statistics.median(more / max(less, 1e-9) for less, more in zip(loop, gateway, strict=True))
        medians = (f"{statistics.median(values):.2f}" for values in (loop, gateway))
        table.add_row(str(window), f"{window * TURN:,}", *medians, f"{ratio:.2f}")
    console.print(table)
    return complaints
