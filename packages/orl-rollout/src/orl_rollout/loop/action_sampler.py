"""One action from the engine: the trainer's parameters, what token exactness asks for, and continued aborts.

The built-in loop and the gateway both sample here. The module knows no turns and no session; every answer of the engine
is checked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from hashlib import blake2b
from typing import Any, Literal

from msgspec import Struct
from orl_core import Generation, Renderer, RolloutSpec

from orl_rollout.loop.engine import Engine, check_generation
from orl_rollout.loop.token_buffer import TokenBuffer

ABORT_PAUSE_SECONDS = 0.05  # between an engine's abort that nobody asked for and the continuation of its action
ActionEnd = Literal["whole", "cut", "aborted"]


class ActionSampler(Struct, frozen=True, kw_only=True):
    """Samples the actions of one rollout.

    `deadline` opens that of one request to the engine. `ends` tells whether the host's abort ends the rollout; it may
    wait for the host.
    """

    job: RolloutSpec
    renderer: Renderer
    engine: Engine
    deadline: Callable[[], AbstractAsyncContextManager[None]]
    ends: Callable[[], Awaitable[bool]]

    async def sample(
        self,
        context: TokenBuffer,
        budget: int,
        generations: list[Generation],
        request: Callable[[], tuple[int, ...]],
        stops: Sequence[str] = (),
    ) -> ActionEnd:
        """Sample at most `budget` ids after `context`, into `generations`; return how the action ended.

        `context` grows by what is sampled. `request` returns numbers that no other request of the rollout has: its seed
        is made of them. `stops` are texts that end the action. An abort that nobody asked for is continued.

        Raises:
            EngineError: the engine failed, took too long, or its answer cannot be trusted.
        """
        left, stop_ids = budget, self.renderer.stop_ids
        while True:
            sampling = sampling_of(self.job.sampling, left, stop_ids, *request(), stops=stops)
            async with self.deadline():
                generation = await self.engine.generate(context, sampling, key=self.job.rollout_id)
            check_generation(generation, left, self.renderer.vocabulary_size)
            generations.append(generation)
            context.extend(generation.token_ids)
            left -= len(generation.token_ids)
            ended = any(token in stop_ids for token in generation.token_ids[-1:])
            if generation.finish_reason != "abort":
                return "whole" if ended or generation.finish_reason == "stop" else "cut"
            if await self.ends():
                return "aborted"
            if ended or left < 1:
                return "whole" if ended else "cut"
            await asyncio.sleep(ABORT_PAUSE_SECONDS)


def sampling_of(
    own: Mapping[str, Any], budget: int, stop_ids: Iterable[int], *request: int, stops: Iterable[str] = ()
) -> dict[str, Any]:
    """Return the parameters of one request for at most `budget` token ids.

    `own` are those of the rollout. `request` are numbers that no other request of the rollout has: its seed is made
    of them. `stop_ids` and `stops`, which are texts, end the action in addition to those in `own`.
    """
    seed, stop = own.get("sampling_seed"), own.get("stop") or ()
    seeded = {} if seed is None else {"sampling_seed": sampling_seed(seed, *request)}
    texts = [*dict.fromkeys((*([stop] if isinstance(stop, str) else stop), *stops))]
    ends = [*dict.fromkeys((*stop_ids, *(own.get("stop_token_ids") or ())))]
    exact = {"max_new_tokens": budget, "stop_token_ids": ends, "no_stop_trim": True, "skip_special_tokens": False}
    return {**own, **exact, **seeded, **({"stop": texts} if texts else {})}


def sampling_seed(*parts: int | str) -> int:
    """Return a seed below 2**31 for `parts`, such as run, task, rollout and turn."""
    digest = blake2b(repr(parts).encode(), digest_size=4).digest()
    return int.from_bytes(digest) >> 1
