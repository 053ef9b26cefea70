"""Seeds of single requests, so that a run repeats its samples and no two rollouts share them.

An engine that is deterministic gives equal seeds equal draws. Without seeds, all rollouts of a group would be one.
"""

from __future__ import annotations

from hashlib import blake2b


def sampling_seed(*parts: int | str) -> int:
    """Return a seed below 2**31 for `parts`, such as the run's seed, the task, the rollout and the turn."""
    digest = blake2b(repr(parts).encode(), digest_size=4).digest()
    return int.from_bytes(digest) >> 1
