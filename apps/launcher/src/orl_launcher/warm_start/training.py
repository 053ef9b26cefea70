"""The training of a warm start: episodes to rows, their order, and what the new checkpoint does at held-out prompts."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import TYPE_CHECKING, cast

from orl_core.messages import ToolCall
from orl_core.trajectory import Generation
from orl_rollout.results.outcome import Outcome

from orl_launcher import cli
from orl_launcher.installation import to_install

if TYPE_CHECKING:
    from orl_core.render import Renderer
    from orl_rollout.loop.engine import Engine
    from orl_rollout.run_folder.contract import LocalEngine, WarmStarter

HELD_OUT = 0.05  # of the episodes
PROMPTS = 64  # at which the new checkpoint is sampled


def warm_starter() -> WarmStarter:
    """Return the package that trains.

    Raises:
        UsageError: none is installed.
    """
    return cast("WarmStarter", _entry("orl.warm_starts").load())


def warm_start_trainer() -> str:
    """Return the name of the trainer that `warm_starter` belongs to."""
    return _entry("orl.warm_starts").name


def _entry(group: str) -> EntryPoint:
    entry = next(iter(entry_points(group=group)), None)
    if entry is None:
        raise cli.UsageError(f"nothing here trains. Run {to_install(cli.backend_of())}")
    return entry


def split(outcomes: Sequence[Outcome], seed: int) -> tuple[list[Outcome], list[Outcome]]:
    """Return the episodes to train on and the held-out ones, at least one."""
    shuffled = random.Random(seed).sample(outcomes, len(outcomes))  # noqa: S311 - no secret is drawn
    held_out = max(1, round(HELD_OUT * len(shuffled)))
    return shuffled[held_out:], shuffled[:held_out]


def order_of(rows: int, total: int, seed: int) -> list[int]:
    """Return `total` places in `rows` rows: all of them, in a new order each time."""
    chance = random.Random(seed)  # noqa: S311 - no secret is drawn
    return [place for _ in range(-(-total // rows)) for place in chance.sample(range(rows), rows)][:total]


def valid_calls(checkpoint: Path, renderer: Renderer, outcomes: Sequence[Outcome], turn_tokens: int) -> float:
    """Return the share of first actions of the checkpoint, at the prompts of `outcomes`, whose calls are all valid."""
    chosen = [outcome.trajectory for outcome in outcomes if outcome.datums][:PROMPTS]
    sampling = {"max_new_tokens": turn_tokens, "temperature": 1.0, "stop_token_ids": renderer.stop_ids}

    async def sample(engine: Engine) -> list[Generation]:
        prompts = [trajectory.turns[0].observation for trajectory in chosen]
        return await asyncio.gather(*(engine.generate(ids, {**sampling}, key=str(n)) for n, ids in enumerate(prompts)))

    sampled = cast("LocalEngine", _entry("orl.engines").load())(str(checkpoint), sample)
    valid = 0
    for trajectory, generation in zip(chosen, sampled, strict=True):
        calls = renderer.parse(generation.token_ids, trajectory.tools).calls
        names = {tool.name for tool in trajectory.tools}
        valid += bool(calls) and all(isinstance(call, ToolCall) and call.name in names for call in calls)
    return valid / len(chosen)
