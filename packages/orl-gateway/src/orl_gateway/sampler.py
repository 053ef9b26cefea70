"""One action from the engine: the trainer's parameters, what token exactness asks for, and continued aborts.

It knows no requests and no tree. Every answer of the engine is checked as in the loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from orl_core.errors import EngineError
from orl_core.render import Renderer
from orl_core.trajectory import Generation, RolloutSpec
from orl_rollout.loop.deadline import within
from orl_rollout.loop.engine import Engine, check_generation
from orl_rollout.loop.loop import ABORT_PAUSE_SECONDS
from orl_rollout.loop.sampling import sampling_of
from orl_rollout.loop.token_buffer import TokenBuffer


class Sampler:
    """Samples for one episode. `stopped` is the host's abort flag."""

    def __init__(self, job: RolloutSpec, *, renderer: Renderer, engine: Engine, stopped: Callable[[], bool]) -> None:
        self._job = job
        self._renderer = renderer
        self._engine = engine
        self._stopped = stopped
        self._requests = 0

    async def sample(
        self, context: TokenBuffer, budget: int, stops: Sequence[str], generations: list[Generation]
    ) -> bool:
        """Sample at most `budget` ids after `context`, into `generations`; return whether the action is whole.

        `context` grows by what is sampled. `stops` are texts that end the action. An abort that nobody asked for is
        continued.

        Raises:
            EngineError: the engine failed, took too long, or its answer cannot be trusted.
        """
        async with within(self._job.limits.turn_timeout, EngineError, "generating"):
            while True:
                left = budget - sum(len(each.token_ids) for each in generations)
                generation = await self._engine.generate(context, self._sampling(left, stops), key=self._job.rollout_id)
                check_generation(generation, left, self._renderer.vocabulary_size)
                generations.append(generation)
                context.extend(generation.token_ids)
                ended = any(token in self._renderer.stop_ids for token in generation.token_ids[-1:])
                if generation.finish_reason != "abort" or ended:
                    return ended or generation.finish_reason == "stop"
                if self._stopped() or left <= len(generation.token_ids):
                    return False
                await asyncio.sleep(ABORT_PAUSE_SECONDS)

    def _sampling(self, budget: int, stops: Sequence[str]) -> dict[str, Any]:
        self._requests += 1
        return sampling_of(self._job.sampling, budget, self._renderer.stop_ids, self._requests, stops=stops)
