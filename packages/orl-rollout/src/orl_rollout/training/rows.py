"""From outcomes to rows: a datum and one advantage for each id of its response.

Every trainer takes its advantages from here. A rollout that failed has no part in its group's baseline and no advantage
(law L3). All rows of a rollout have its reward, and count once in its group (law L7).
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from msgspec import Struct
from orl_core.datum import Datum
from orl_core.estimators import Estimator
from orl_core.reward import group_advantages, turn_advantages

from orl_rollout.results.outcome import Outcome


class Member(Struct, frozen=True, kw_only=True):
    """One row in its group, before its advantage. Rows of one rollout share `group`, `rollout_id` and `reward`.

    `turns` as `turns_of` returns them: number of the turn, index of its last id, reward paid before it.
    """

    group: Hashable
    rollout_id: Hashable
    reward: float
    trains: bool
    turns: Sequence[tuple[int, int, float]]


class Row(Struct, frozen=True, kw_only=True):
    """A datum that trains, and the advantage of each id of its response: 0 where `loss_mask` is 0."""

    datum: Datum
    advantages: tuple[float, ...]


def turns_of(datums: Sequence[Datum]) -> list[list[tuple[int, int, float]]]:
    """Return the turns of each row of one rollout: number of the turn, index of its last id, reward paid before it.

    The number and the reward continue from row to row.
    """
    rows: list[list[tuple[int, int, float]]] = []
    number, paid = 0, 0.0
    for datum in datums:
        rewards, turns = dict(datum.rewards), list[tuple[int, int, float]]()
        for end in datum.ends:
            turns.append((number, end, paid))
            number, paid = number + 1, paid + rewards.get(end, 0.0)
        rows.append(turns)
    return rows


def advantages_of(
    members: Sequence[Member], *, center: bool, scale: bool, turns: bool
) -> list[list[tuple[int, float]]]:
    """Return for each row the turns with their advantages: index of the last id, and advantage.

    If `turns`, the advantage is that of the reward from the turn on (`orl_core.reward.turn_advantages`), else that of
    the whole rollout (`group_advantages`).
    """
    groups = [member.group for member in members]
    if not turns:
        rewards, rollouts = [member.reward for member in members], [member.rollout_id for member in members]
        trains = [member.trains for member in members]
        whole = group_advantages(rewards, groups, rollouts, trains, center=center, scale=scale)
        return [[(end, gained) for _, end, _ in member.turns] for member, gained in zip(members, whole, strict=True)]
    rows: dict[tuple[Hashable, Hashable], list[Member]] = {}
    for member in members:
        rows.setdefault((member.group, member.rollout_id), []).append(member)
    gains = turn_advantages(
        [[member.reward - paid for member in own for _, _, paid in member.turns] for own in rows.values()],
        [group for group, _ in rows],
        [any(member.trains for member in own) for own in rows.values()],
        center=center,
        scale=scale,
    )
    by_rollout = dict(zip(rows, gains, strict=True))
    return [
        [
            (end, by_rollout[member.group, member.rollout_id][number] if member.trains else 0.0)
            for number, end, _ in member.turns
        ]
        for member in members
    ]


def members_of(outcomes: Sequence[Outcome], group_size: int) -> list[Member]:
    """Return the rows of outcomes, in order; each `group_size` adjacent outcomes are a group."""
    return [
        Member(
            group=place // group_size,
            rollout_id=place,
            reward=outcome.reward,
            trains=outcome.trains and datum.trainable,
            turns=own,
        )
        for place, outcome in enumerate(outcomes)
        for datum, own in zip(outcome.datums, turns_of(outcome.datums), strict=True)
    ]


def rows_of(outcomes: Sequence[Outcome], group_size: int, estimator: Estimator, *, turns: bool) -> list[Row]:
    """Return the rows that train, with advantages within each `group_size` adjacent outcomes."""
    members = members_of(outcomes, group_size)
    gained = advantages_of(members, center=estimator.center, scale=estimator.scale, turns=turns)
    data = [datum for outcome in outcomes for datum in outcome.datums]
    return [
        Row(datum=datum, advantages=_per_id(datum, own))
        for datum, own in zip(data, gained, strict=True)
        if datum.trainable and any(datum.loss_mask)
    ]


def advantages_per_token(turns: Sequence[tuple[int, float]], length: int) -> list[float]:
    """Return the advantage of each of the `length` ids of a response; `turns` are last index and advantage of each."""
    spread: list[float] = []
    for end, advantage in turns:
        spread += [advantage] * (end + 1 - len(spread))
    return [*spread, *[0.0] * (length - len(spread))]


def _per_id(datum: Datum, turns: Sequence[tuple[int, float]]) -> tuple[float, ...]:
    spread = advantages_per_token(turns, len(datum.response))
    return tuple(gained if trains else 0.0 for gained, trains in zip(spread, datum.loss_mask, strict=True))


def trained_ids(rows: Sequence[Row]) -> int:
    """Count the ids that train."""
    return sum(sum(row.datum.loss_mask) for row in rows)
