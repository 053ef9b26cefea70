"""Turn rewards in TRL: the return-to-go of each call as the advantage of its ids (`turn_advantages`).

TRL's loss takes one advantage for each id as well as one for each row. The module knows outcomes, and no batch.
"""

from __future__ import annotations

from collections.abc import Sequence

from orl_core.reward import turn_advantages
from orl_core.turns import advantages_per_token, returns_to_go, turns_of
from orl_rollout.results.outcome import Outcome


def advantages_of_rows(outcomes: Sequence[Outcome], group: int, *, scale: bool) -> list[list[list[float]]]:
    """Return the advantages of the response ids of each row of each rollout; see `orl_core.reward.turn_advantages`.

    Each `group` rollouts are of one task. The return-to-go of a turn is the reward of the rollout without what was paid
    before the turn. A rollout that does not train gets 0, and one without a row has none.
    """
    rows = [turns_of(outcome.datums) for outcome in outcomes]
    returns = [returns_to_go(own, outcome.reward) for outcome, own in zip(outcomes, rows, strict=True)]
    trains = [outcome.trains for outcome in outcomes]
    groups = [number // group for number in range(len(outcomes))]
    advantages = turn_advantages(returns, groups, trains, center=True, scale=scale)
    return [
        [
            advantages_per_token([(end, gained[number]) for number, end, _ in turns], len(datum.response))
            for datum, turns in zip(outcome.datums, own, strict=True)
        ]
        for outcome, own, gained in zip(outcomes, rows, advantages, strict=True)
    ]
