"""The engine protocol: token ids in, token ids and their logprobs out. SGLang, an in-process model and fakes fit it.

An engine retries by itself what can be retried (within the deadline that the loop sets around the call) and raises
`EngineError` for the rest. It never sees messages, and never re-tokenizes. `check_generation` judges every answer,
whichever engine gave it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from orl_core.errors import EngineAnswerError
from orl_core.trajectory import Generation


class Engine(Protocol):
    """One model behind any transport."""

    async def generate(self, ids: Sequence[int], sampling: Mapping[str, Any], *, key: str) -> Generation:
        """Sample one continuation of `ids`. Without room for another id: no ids, and the finish reason `length`.

        Args:
            ids: the whole context, at least one id, unchanged until the answer is there. The loop hands over a
                `TokenBuffer`: within one `key` it grows by appending, except where the reasoning of the turn before is
                stripped.
            sampling: SGLang's sampling parameters (`max_new_tokens`, `stop_token_ids` ...), set per call.
            key: the rollout's name; equal keys should meet the same prefix cache.

        Raises:
            EngineError: the engine failed for good, or its answer cannot be trusted.
        """
        ...


def check_generation(generation: Generation, budget: int, vocabulary_size: int) -> None:
    """Refuse an answer that breaks the request: too many ids, unknown ones, or a stop without any.

    No ids and `length` is an engine that has no room left for another one.
    """
    if max(generation.token_ids, default=0) >= vocabulary_size:
        raise EngineAnswerError(f"the engine returned the id {max(generation.token_ids)} of {vocabulary_size} ids")
    if len(generation.token_ids) > budget:
        raise EngineAnswerError(
            f"the engine returned {len(generation.token_ids)} ids where at most {budget} were asked for"
        )
    if not generation.token_ids and generation.finish_reason == "stop":
        raise EngineAnswerError("the engine returned no id and the finish reason `stop`")
