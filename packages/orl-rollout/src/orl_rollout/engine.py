"""The engine protocol: token ids in, token ids and their logprobs out. SGLang, an in-process model and fakes fit it.

An engine retries by itself what can be retried (within the deadline that the loop sets around the call) and raises
`EngineError` for the rest. It never sees messages, and never re-tokenizes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from orl_core.trajectory import Generation


class Engine(Protocol):
    """One model behind any transport."""

    async def generate(self, ids: Sequence[int], sampling: Mapping[str, Any], *, key: str) -> Generation:
        """Sample one continuation of `ids`. Without room for another id: no ids, and the finish reason `length`.

        Args:
            ids: the whole context, at least one id, unchanged until the answer is there. The loop hands over a
                `Context`: within one `key` it grows by appending, except where the reasoning of the turn before is
                stripped.
            sampling: SGLang's sampling parameters (`max_new_tokens`, `stop_token_ids` ...), set per call.
            key: the rollout's name; equal keys should meet the same prefix cache.

        Raises:
            EngineError: the engine failed for good, or its answer cannot be trusted.
        """
        ...
