"""Sampling parameters of single requests: the trainer's own, what token exactness asks for, and a seed.

An engine that is deterministic gives equal seeds equal draws. Without seeds, all rollouts of a group would be one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from hashlib import blake2b
from typing import Any


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
    """Return a seed below 2**31 for `parts`, such as the run's seed, the task, the rollout and the turn."""
    digest = blake2b(repr(parts).encode(), digest_size=4).digest()
    return int.from_bytes(digest) >> 1
