"""The engine of rollouts: token ids to the server's sampler and back, each with its logprob (law L1).

The SDK repeats requests by itself. Other people's work may be before ours in the server's queue, so no deadline counts
the first `patience` seconds of a request.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from orl_core.errors import EngineAnswerError, EngineRefused
from orl_core.trajectory import Generation
from orl_rollout.loop.clock import postpone
from tinker import ModelInput, SampledSequence, SamplingParams

LOOK_SECONDS = 0.5  # between two looks for an answer
_IGNORED = frozenset({"no_stop_trim", "skip_special_tokens"})  # the server neither trims nor decodes
_TAKEN = {"max_new_tokens", "stop_token_ids", "sampling_seed", "temperature", "top_p", "top_k"}
Sample = Callable[[ModelInput, SamplingParams], Awaitable[SampledSequence]]


class TinkerEngine:
    """`orl_rollout.loop.engine.Engine` over `sample`. `weight_version` goes into every Generation."""

    def __init__(self, sample: Sample, patience: float) -> None:
        self._sample = sample
        self._patience = patience
        self.weight_version = ""

    async def generate(self, ids: Sequence[int], sampling: Mapping[str, Any], *, key: str) -> Generation:
        """Sample one continuation of `ids`.

        Raises:
            EngineError: a parameter is unknown, the server failed, or its answer cannot be trusted.
        """
        started, version = time.monotonic(), self.weight_version
        sample = self._sample(ModelInput.from_ints(list(ids)), sampling_params(sampling))
        sequence = await self._awaited(asyncio.ensure_future(sample))
        if sequence.logprobs is None:
            raise EngineAnswerError(f"the server returned {len(sequence.tokens)} ids without logprobs")
        return Generation(
            token_ids=tuple(sequence.tokens),
            logprobs=tuple(sequence.logprobs),
            finish_reason=sequence.stop_reason,
            weight_version=version,
            seconds=time.monotonic() - started,
        )

    async def _awaited(self, answer: asyncio.Future[SampledSequence]) -> SampledSequence:
        left = self._patience
        try:
            while not answer.done() and left > 0:
                began, most = time.monotonic(), min(LOOK_SECONDS, left)
                postpone(most)
                await asyncio.wait((answer,), timeout=most)
                waited = time.monotonic() - began
                postpone(waited - most)
                left -= waited
            return await answer
        finally:
            answer.cancel()


def sampling_params(sampling: Mapping[str, Any]) -> SamplingParams:
    """Return the SDK's parameters for SGLang's; what is None is left to the server.

    Raises:
        EngineRefused: the server has no such parameter. A stop text would end an action between two ids.
    """
    own = {name: value for name, value in sampling.items() if name not in _IGNORED and value is not None}
    if unknown := sorted(own.keys() - _TAKEN):
        raise EngineRefused(f"sampling parameters that the server does not take: {', '.join(unknown)}. Remove them")
    named = {
        "max_tokens": own.get("max_new_tokens"),
        "stop": list(own.get("stop_token_ids") or ()) or None,
        "seed": own.get("sampling_seed"),
        **{name: own[name] for name in ("temperature", "top_p", "top_k") if name in own},
    }
    return SamplingParams(**{name: value for name, value in named.items() if value is not None})
