"""From rows to what an update computes with: parts of a step, micro-batches by token ids, tensors of single ids.

Rows are padded on the right: no real id attends to one after it, so attention needs no mask.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence

import torch
from msgspec import Struct
from orl_rollout.training.rows import Row, trained_ids
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from orl_local.objective import Ids
from orl_local.settings import Settings


class Member(Struct, kw_only=True):
    """A row in its update: `ids` of prompt and response, and for each id that trains its place among them.

    `advantages` and `sampled` logprobs are those of these ids, `share` is the part of each in the loss. `rollout`
    numbers the rollouts of the update. `alone`: the rollout has no other row. The rest as in `Ids`, float32 on the CPU.
    """

    ids: tuple[int, ...]
    places: list[int]
    advantages: list[float]
    sampled: list[float]
    share: float
    rollout: int
    alone: bool
    old: Tensor | None = None
    weight: Tensor | None = None
    drift: Tensor | None = None


def parts_of(rows: Sequence[Row], settings: Settings, step: int) -> list[list[Row]]:
    """Return the rows of each update of a step: all rows of a rollout in one, in an order of seed and step."""
    rollouts = list(dict.fromkeys(row.datum.rollout_id for row in rows))
    random.Random(f"{settings.seed}/{step}").shuffle(rollouts)  # noqa: S311 - a run needs repeatable chance
    count = min(settings.updates, len(rollouts))
    place = {rollout: number * count // len(rollouts) for number, rollout in enumerate(rollouts)}
    return [[row for row in rows if place[row.datum.rollout_id] == part] for part in range(count)]


def members_of(parts: Sequence[Sequence[Row]], settings: Settings) -> list[list[Member]]:
    """Return the members of each update. Shares are those of the whole step, so that each id counts the same in all."""
    rows = [row for part in parts for row in part]
    lengths, several = Counter[str](), Counter[str]()
    for row in rows:
        lengths[row.datum.rollout_id] += sum(row.datum.loss_mask)
        several[row.datum.rollout_id] += 1
    whole = {
        "ids": float(trained_ids(rows)),
        "rollouts": float(len(lengths)),
        "constant": float(len(lengths) * settings.turn_tokens),
    }[settings.algorithm.mean]

    def member(row: Row, number: int) -> Member:
        datum, rollout = row.datum, row.datum.rollout_id
        trained = [place for place, trains in enumerate(datum.loss_mask) if trains]
        own = lengths[rollout] if settings.algorithm.mean == "rollouts" else 1
        return Member(
            ids=(*datum.prompt, *datum.response),
            places=[len(datum.prompt) + place for place in trained],
            advantages=[row.advantages[place] for place in trained],
            sampled=[datum.logprobs[place] for place in trained],
            share=len(parts) / (whole * own),
            rollout=number,
            alone=several[rollout] == 1,
        )

    updates: list[list[Member]] = []
    for part in parts:
        numbers = {rollout: number for number, rollout in enumerate(dict.fromkeys(r.datum.rollout_id for r in part))}
        updates.append([member(row, numbers[row.datum.rollout_id]) for row in part])
    return updates


def micro_batches(lengths: Sequence[int], tokens: int) -> list[list[int]]:
    """Return the places of each micro-batch, longest rows first: at most `tokens` ids with padding, or one row."""
    parts: list[list[int]] = []
    for place in sorted(range(len(lengths)), key=lambda place: -lengths[place]):
        if parts and (len(parts[-1]) + 1) * lengths[parts[-1][0]] <= tokens:
            parts[-1].append(place)
        else:
            parts.append([place])
    return parts


class Batch(Struct, frozen=True, kw_only=True):
    """A micro-batch on the device: token ids [B, T], and row and column of each trained id, int64 [N]."""

    token_ids: Tensor
    row: Tensor
    column: Tensor
    members: Sequence[Member]

    @property
    def targets(self) -> Tensor:
        """Return the trained ids, int64 [N]."""
        return self.token_ids[self.row, self.column]

    @property
    def mask(self) -> Tensor:
        """Return 1 for each id and 0 for padding, int64 [B, T]."""
        lengths = torch.tensor([len(one.ids) for one in self.members], device=self.token_ids.device)
        return (torch.arange(self.token_ids.shape[1], device=lengths.device) < lengths[:, None]).long()

    def ids(self) -> Ids:
        """Return what the objective needs of each trained id."""

        def flat(values: Callable[[Member], Sequence[float]]) -> Tensor:
            return torch.tensor([one for member in self.members for one in values(member)], device=device)

        def known(values: list[Tensor | None]) -> Tensor | None:
            there = [one for one in values if one is not None]
            return torch.cat(there).to(device) if there else None

        device = self.token_ids.device
        rollouts = [one.rollout for one in self.members for _ in one.places]
        return Ids(
            advantages=flat(lambda one: one.advantages),
            sampled=flat(lambda one: one.sampled),
            share=flat(lambda one: [one.share] * len(one.places)),
            rollout=torch.tensor(rollouts, device=device),
            rollouts=max(rollouts, default=-1) + 1,
            old=known([one.old for one in self.members]),
            weight=known([one.weight for one in self.members]),
            drift=known([one.drift for one in self.members]),
        )


def batch_of(members: Sequence[Member], device: torch.device) -> Batch:
    """Return `members` as one micro-batch on `device`."""
    ids = pad_sequence([torch.tensor(one.ids) for one in members], batch_first=True)
    rows = [number for number, one in enumerate(members) for _ in one.places]
    columns = [place for one in members for place in one.places]
    return Batch(
        token_ids=ids.to(device),
        row=torch.tensor(rows, device=device),
        column=torch.tensor(columns, device=device),
        members=members,
    )
