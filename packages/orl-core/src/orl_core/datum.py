"""A datum: one row of training data, concatenated from a trajectory, before a trainer's own Sample.

Law L1 holds by construction: `prompt + response` is what the engine was shown and what it returned, in order, up to the
last id that it returned; `sampled` marks the engine's ids, each with its own logprob. A turn that was shown less than
the whole history (stripped reasoning) begins a datum of its own, and so does one that branches off. Each turn belongs
to one datum, so that each sampled id trains at most once; what a branch shares with others is in its prompt.
Nothing is tokenized or rendered here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from msgspec import Struct

from orl_core.errors import expect
from orl_core.limits import TrainOn
from orl_core.trajectory import Generation, Trajectory, Turn


class Datum(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One row of training data. P = len(prompt), R = len(response).

    `response`, `sampled`, `loss_mask` and `logprobs` have length R; `sampled` and `loss_mask` hold 0 or 1 with
    `loss_mask <= sampled`; `logprobs` are the engine's at the sampled places and 0.0 elsewhere. `rewards` are what the
    environment paid, turn by turn: the place in `response` of the action's last id, and the reward; `ends` are these
    places of all actions. `generations` are the engine's answers that the datum is made of, in order. `reward` is that
    of the whole rollout: data of one rollout share `rollout_id` and `reward`.
    """

    task_key: str
    rollout_id: str
    prompt: tuple[int, ...]
    response: tuple[int, ...]
    sampled: tuple[int, ...]
    loss_mask: tuple[int, ...]
    logprobs: tuple[float, ...]
    generations: tuple[Generation, ...] = ()
    reward: float = 0.0
    rewards: tuple[tuple[int, float], ...] = ()
    ends: tuple[int, ...] = ()
    trainable: bool = True

    @property
    def weight_versions(self) -> tuple[str, ...]:
        """Return the version of the weights behind each generation that has ids."""
        return tuple(generation.weight_version for generation in self.generations if generation.token_ids)


def to_data(trajectory: Trajectory, *, reward: float) -> tuple[Datum, ...]:
    """Return the data of `trajectory`, in the order of its turns; none if the engine never returned an id.

    One datum, or one for each row of turns: a row ends where reasoning was stripped, and a branch is a row of its own.
    A trajectory that does not train gives well-formed data whose `loss_mask` is all 0.
    """
    expect(Trajectory, "trajectory", trajectory)
    turns, parents = trajectory.turns, trajectory.parents
    return tuple(
        _datum(trajectory, _history(turns, parents, row[0]), [turns[index] for index in row], reward)
        for row in _rows(turns, parents)
        if any(turns[index].action_ids for index in row)
    )


def _rows(turns: Sequence[Turn], parents: Sequence[int]) -> list[list[int]]:
    """Return the indexes of the turns of each row, in the order of their first turns.

    The first turn that continues another one joins its row, unless that one was not shown whole.
    """
    rows: list[list[int]] = []
    open_rows: dict[int, list[int]] = {}  # by their last turn
    for index, (turn, parent) in enumerate(zip(turns, parents, strict=True)):
        row = open_rows.pop(parent, None)
        if row is None:
            rows.append(row := [])
        row.append(index)
        if not turn.stripped_spans:
            open_rows[index] = row
    return rows


def _history(turns: Sequence[Turn], parents: Sequence[int], index: int) -> list[int]:
    """Return the ids that turn `index` was shown before its own observation."""
    shown: list[Turn] = []
    while (index := parents[index]) >= 0:
        shown.append(turns[index])
    return [token for turn in reversed(shown) for token in turn.visible_ids]


def _datum(trajectory: Trajectory, history: Sequence[int], turns: Sequence[Turn], reward: float) -> Datum:
    """Return the datum of `turns`. Each was shown all that came since the first."""
    response: list[int] = []  # (R,), and so are the next three
    sampled: list[int] = []
    mask: list[int] = []
    logprobs: list[float] = []
    rewards: list[tuple[int, float]] = []
    ends: list[int] = []
    trains, train_on = trajectory.trainable, trajectory.job.limits.train_on
    end = 0
    for position, turn in enumerate(turns):
        # 1. What the engine was shown since its last answer: never trains. The first observation is the prompt.
        if position:
            zeros = [0] * len(turn.observation)
            response.extend(turn.observation)
            sampled.extend(zeros)
            mask.extend(zeros)
            logprobs.extend([0.0] * len(zeros))
        # 2. The action: the engine's own ids, each with its own logprob (law L1).
        ids = turn.action_ids
        response.extend(ids)
        sampled.extend([1] * len(ids))
        mask.extend(loss_mask_of(turn, train_on) if trains else [0] * len(ids))
        logprobs.extend(logprob for generation in turn.generations for logprob in generation.logprobs)
        # 3. The reward of the turn is paid at the action's last id.
        if ids:
            end = len(response)
            ends.append(end - 1)
            if turn.reward is not None and math.isfinite(turn.reward):
                rewards.append((end - 1, turn.reward))
    # 4. The row ends with the last id that the engine returned: what it was shown after that is left out.
    return Datum(
        task_key=trajectory.job.task.key,
        rollout_id=trajectory.job.rollout_id,
        prompt=(*history, *turns[0].observation),
        response=tuple(response[:end]),
        sampled=tuple(sampled[:end]),
        loss_mask=tuple(mask[:end]),
        logprobs=tuple(logprobs[:end]),
        generations=tuple(generation for turn in turns for generation in turn.generations),
        reward=reward,
        rewards=tuple(rewards),
        ends=tuple(ends),
        trainable=trains,
    )


def loss_mask_of(turn: Turn, train_on: TrainOn) -> list[int]:
    """Return the loss mask of the action of a turn that trains: 0 or 1 for each of its ids.

    If the action's parts are unknown, it trains only if all of them may.
    """
    count = len(turn.action_ids)
    if turn.failed and not train_on.failed_turns:
        return [0] * count
    if turn.spans is None:
        return [int(train_on.text and train_on.calls and train_on.reasoning)] * count
    mask = [int(train_on.text)] * count
    for span in turn.spans:
        trains = train_on.reasoning if span.part == "reasoning" else train_on.calls
        mask[span.start : span.end] = [int(trains)] * len(mask[span.start : span.end])
    return mask
