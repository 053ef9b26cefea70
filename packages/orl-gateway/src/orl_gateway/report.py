"""The report of episodes that were played through the gateway: rows, ids, branches and their causes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from msgspec import Struct
from orl_rollout.results.metrics import stats_of
from orl_rollout.results.outcome import Outcome


class Report(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Counts over rollouts. `single_rows` are those that gave one row.

    `sampled` and `trained` count ids; `prompt_tokens` are the ids of all prompts, `cached_tokens` of them came from the
    prefix cache. `branches` counts the turns that began a row, by cause.
    """

    rollouts: int
    rows: int
    single_rows: int
    turns: int
    sampled: int
    trained: int
    prompt_tokens: int
    cached_tokens: int
    branches: dict[str, int]


def report_of(outcomes: Iterable[Outcome]) -> Report:
    """Return the report of `outcomes`."""
    batch = list(outcomes)
    stats = [stats_of(outcome) for outcome in batch]
    branches = (turn.branch for outcome in batch for turn in outcome.trajectory.turns)
    return Report(
        rollouts=len(batch),
        rows=sum(len(outcome.datums) for outcome in batch),
        single_rows=sum(len(outcome.datums) == 1 for outcome in batch),
        turns=sum(one.turns for one in stats),
        sampled=sum(one.action_tokens for one in stats),
        trained=sum(sum(datum.loss_mask) for outcome in batch for datum in outcome.datums),
        prompt_tokens=sum(one.prompt_tokens for one in stats),
        cached_tokens=sum(one.cached_tokens for one in stats),
        branches=dict(Counter(branch.value for branch in branches if branch is not None)),
    )
