"""pass@k: the chance that at least one of k rollouts of a task succeeds, estimated without bias.

Pure. Of n rollouts of which c succeeded, a random choice of k holds no success with the chance C(n-c, k) / C(n, k).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import comb
from statistics import fmean


def pass_at_k(n: int, c: int, k: int) -> float:
    """Return the estimate for one task with `c` successes in `n` rollouts; 1 <= k <= n, 0 <= c <= n.

    Raises:
        ValueError: the numbers do not fit together.
    """
    if not (1 <= k <= n and 0 <= c <= n):
        raise ValueError(f"pass@{k} of {c} successes in {n} rollouts is not defined")
    return 1.0 - comb(n - c, k) / comb(n, k)


def mean_pass_at_k(successes: Mapping[str, Sequence[bool]]) -> dict[int, float]:
    """Average pass@k over tasks, for k = 1, 2, 4, ... and the largest that every task has rollouts for.

    `successes` holds, by task, whether each of its rollouts succeeded; tasks without rollouts are left out.
    """
    tasks = [outcomes for outcomes in successes.values() if outcomes]
    largest = min(map(len, tasks), default=0)
    return {k: fmean(pass_at_k(len(task), sum(task), k) for task in tasks) for k in _ladder(largest)}


def _ladder(largest: int) -> Iterable[int]:
    k = 1
    while k < largest:
        yield k
        k *= 2
    if largest:
        yield largest
