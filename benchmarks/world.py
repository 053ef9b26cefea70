"""The world of the benchmarks that play rollouts: a tokenizer, one action, one observation, and who plays them.

The tokenizer learns its merges from the standard library's sources, so that ids are as long and texts as dense as with
a real one; control tokens and template are Qwen3's. An action and what the environment answers make a turn of 505 ids.
"""

from __future__ import annotations

import itertools
import json
import os
from bisect import bisect_left
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from orl_core.config import RunConfig, decode_config
from orl_core.messages import text_message
from orl_core.render import Renderer
from orl_core.task import Task
from orl_rollout.episodes.journal import Journal
from orl_rollout.loop.engine import Engine
from orl_rollout.openreward import OpenRewardClient
from orl_rollout.results.outcome import Outcome
from orl_rollout.runtime.circuit_breaker import CircuitBreaker
from orl_rollout.runtime.runtime import RolloutRequest, Runtime
from orl_rollout.sglang.client import SglangEngine
from orl_rollout.tokenizer.tokenizer import HFTokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

TURN = 505  # ids of an observation and the action before it
ACTION = 155  # of these, the model's
CONTEXT = 1 << 17
TASK = Task(env_name="bench/Shell", deployment_name="bench/Shell", environment_name="shell", task_spec={"number": 1})


def sources(characters: int) -> list[str]:
    """Text of about this many characters: modules of the standard library."""
    texts: list[str] = []
    for path in sorted(Path(os.__file__).parent.glob("*.py")):
        texts.append(path.read_text(encoding="utf-8", errors="replace"))
        characters -= len(texts[-1])
        if characters <= 0:
            break
    return texts


def hugging_face(vocabulary: int) -> PreTrainedTokenizerFast:
    """Byte-level BPE of `vocabulary` tokens with Qwen3's control tokens and template."""
    from tests.kit.tokenizers import build, template

    tokenizer = build(template("qwen3"), texts=sources(200 * vocabulary), size=vocabulary)
    tokenizer.model_max_length = CONTEXT
    return tokenizer


@dataclass(frozen=True, kw_only=True)
class World:
    """State that all rollouts share: `hf` and `renderer`, the ids of every `action`, the text of every observation."""

    hf: PreTrainedTokenizerFast
    renderer: Renderer
    action: list[int]
    said: str

    @cached_property
    def observation(self) -> int:
        """Count the ids of an observation."""
        return len(self.renderer.extend(self.action, [text_message("tool", self.said, name="run")], calls_before=0))


@cache
def make_world(*, quick: bool, turn: int = TURN, action_ids: int = ACTION) -> World:
    """The world; `quick` learns fewer merges. A turn has `turn` ids, of which `action_ids` are the model's."""
    hf = hugging_face(2_000 if quick else 16_000)
    renderer = Renderer(HFTokenizer(hf))
    text = sources(1)[0]

    def action(size: int) -> list[int]:
        call = json.dumps({"name": "run", "arguments": {"command": text[:size]}})
        return hf.encode(f"I look at it.\n<tool_call>\n{call}\n</tool_call><|im_end|>", add_special_tokens=False)

    def observed(size: int) -> int:
        message = text_message("tool", text[-size:], name="run")
        return len(renderer.extend(action(1), [message], calls_before=0))

    words = _smallest(lambda size: len(action(size)), action_ids)
    length = _smallest(observed, turn - len(action(words)))
    return World(hf=hf, renderer=renderer, action=action(words), said=text[-length:])


def _smallest(ids: Callable[[int], int], wanted: int) -> int:
    """The smallest size at which `ids`, which grows with it, reaches `wanted`."""
    return bisect_left(range(8 * wanted), wanted, key=ids)


class Player:
    """Plays rollouts of a number of turns, spread over the servers; each has a name of its own."""

    def __init__(self, runtime: Callable[[int, int], Runtime], servers: int, engine: Engine) -> None:
        self._runtime = cache(runtime)
        self._servers = servers
        self._engine = engine
        self._numbers = itertools.count()

    async def play(self, turns: int) -> Outcome:
        """One rollout of `turns` turns; with 0 it is opened and closed."""
        number = next(self._numbers)
        runtime = self._runtime(number % self._servers, max(turns, 1))
        key, sampling = f"r{number:031d}", {"temperature": 1.0}
        room = None if turns else 1  # too little for the prompt: no turn is played
        request = RolloutRequest(task=TASK, rollout_id=key, sampling=sampling, context_tokens=room)
        return await runtime.play(request, self._engine)


@asynccontextmanager
async def playing(world: World, engine: str, servers: Sequence[str], journal: Path) -> AsyncGenerator[Player]:
    """A player against an engine and environment servers, all in use as trainers have it, journal included."""
    breaker = CircuitBreaker(max_error_rate=1.0, group_size=1)
    async with AsyncExitStack() as stack:
        sglang = await stack.enter_async_context(SglangEngine(engine, context_tokens=CONTEXT))
        written = stack.enter_context(Journal(journal))
        clients = [await stack.enter_async_context(OpenRewardClient(config_of(url, 1))) for url in servers]

        def runtime(server: int, turns: int) -> Runtime:
            return Runtime(
                config_of(servers[server], turns),
                renderer=world.renderer,
                client=clients[server],
                breaker=breaker,
                journal=written,
            )

        yield Player(runtime, len(servers), sglang)


def config_of(url: str, turns: int) -> RunConfig:
    """The configuration of rollouts of `turns` turns in the environment at `url`."""
    budgets = {"context_tokens": CONTEXT, "turn_timeout": 600.0, "call_timeout": 300.0, "rollout_timeout": 3600.0}
    environment = {"base_url": url, "max_turns": turns, "max_concurrency": None}
    return decode_config({"environments": {"bench/Shell": environment}, "rollout": budgets}, "benchmarks")


def faults(outcomes: list[Outcome], turns: int) -> list[str]:
    """Return the faults, one line for each kind."""
    found: dict[str, int] = {}
    for outcome in outcomes:
        trajectory = outcome.trajectory
        if trajectory.error:
            found[trajectory.error] = found.get(trajectory.error, 0) + 1
        elif len(trajectory.turns) != turns:
            text = f"{trajectory.stop_reason} after {len(trajectory.turns)} turns instead of {turns}"
            found[text] = found.get(text, 0) + 1
    return [f"{count} rollouts: {text}" for text, count in found.items()]
