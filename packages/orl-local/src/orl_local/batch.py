"""From rows to what an update computes with: parts of a step, micro-batches by token ids, tensors of single ids.

Rows are padded on the right: no real id attends to one after it, so attention needs no mask.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from typing import Any, Literal

import torch
from msgspec import Struct, structs
from orl_rollout.training.rows import Row, trained_ids
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from orl_local.objective import Ids
from orl_local.settings import Settings


class Member(Struct, frozen=True, kw_only=True):
    """A row in its update: its token ids, the `places` of those that train, and what the objective needs of these.

    `rollout` is the number of its rollout. `alone`: it has no other row.
    """

    rollout: int
    token_ids: tuple[int, ...]
    places: list[int]
    ids: Ids
    alone: bool


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
    numbers = {rollout: number for number, rollout in enumerate(dict.fromkeys(row.datum.rollout_id for row in rows))}
    several, lengths = Counter(row.datum.rollout_id for row in rows), Counter[str]()
    for row in rows:
        lengths[row.datum.rollout_id] += sum(row.datum.loss_mask)
    counts = {"ids": trained_ids(rows), "rollouts": len(numbers), "constant": len(numbers) * settings.turn_tokens}
    whole = float(counts[settings.algorithm.mean])

    def member(row: Row) -> Member:
        datum, rollout = row.datum, row.datum.rollout_id
        trained = [place for place, trains in enumerate(datum.loss_mask) if trains]
        share = len(parts) / (whole * (lengths[rollout] if settings.algorithm.mean == "rollouts" else 1))
        ids = Ids(
            advantages=torch.tensor([row.advantages[place] for place in trained]),
            sampled=torch.tensor([datum.logprobs[place] for place in trained]),
            share=torch.full((len(trained),), share),
            rollout=torch.full((len(trained),), numbers[rollout]),
            rollouts=len(numbers),
        )
        return Member(
            rollout=numbers[rollout],
            token_ids=(*datum.prompt, *datum.response),
            places=[len(datum.prompt) + place for place in trained],
            ids=ids,
            alone=several[rollout] == 1,
        )

    return [[member(row) for row in part] for part in parts]


def part_of(members: Sequence[Member], number: int, count: int) -> list[Member]:
    """Return the part of rank `number` of `count`: whole rollouts, and about as many token ids as in every other."""
    if count == 1:
        return [*members]
    sizes = Counter[int]()
    for one in members:
        sizes[one.rollout] += len(one.token_ids)
    owned, owner = [0] * count, dict[int, int]()
    for rollout, size in sizes.most_common():
        owner[rollout] = owned.index(min(owned))
        owned[owner[rollout]] += size
    return [one for one in members if owner[one.rollout] == number]


def filler_of(member: Member) -> Member:
    """Return a filler of one id for the update of `member`. Nothing of it trains."""
    none = torch.empty(0)
    ids = Ids(advantages=none, sampled=none, share=none, rollout=none.long(), rollouts=member.ids.rollouts)
    return structs.replace(member, token_ids=member.token_ids[:1], places=[], ids=ids, alone=True)


def give(members: Sequence[Member], name: Literal["old", "weight", "drift"], values: Tensor) -> None:
    """Give each member its part of `values`, [N] for the trained ids of all of them."""
    for member, own in zip(members, values.split([len(one.places) for one in members]), strict=True):
        setattr(member.ids, name, own)


def ids_of(members: Sequence[Member], device: torch.device) -> Ids:
    """Return what the objective needs of all ids of `members`, on `device`."""
    several = [one.ids for one in members]

    def joined(name: str) -> Any:
        values = [getattr(ids, name) for ids in several]
        return None if values[0] is None else sent(torch.cat(values), device)

    names = ("advantages", "sampled", "share", "rollout", "old", "weight", "drift")
    return Ids(rollouts=several[0].rollouts, **{name: joined(name) for name in names})


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
    """A micro-batch on the device: token ids [B, T], 1 for each of them and 0 for padding, `row` and `column` of each
    trained id, int64 [N], and what the objective needs of it.
    """

    token_ids: Tensor
    mask: Tensor
    row: Tensor
    column: Tensor
    ids: Ids


def batch_of(members: Sequence[Member], device: torch.device) -> Batch:
    """Return `members` as one micro-batch on `device`."""
    rows = [torch.tensor(one.token_ids) for one in members]
    numbers = [number for number, one in enumerate(members) for _ in one.places]
    places = [place for one in members for place in one.places]
    return Batch(
        token_ids=sent(pad_sequence(rows, batch_first=True), device),
        mask=sent(pad_sequence([torch.ones_like(row) for row in rows], batch_first=True), device),
        row=sent(torch.tensor(numbers, dtype=torch.long), device),
        column=sent(torch.tensor(places, dtype=torch.long), device),
        ids=ids_of(members, device),
    )


def sent(tensor: Tensor, device: torch.device) -> Tensor:
    """Return a tensor of the CPU on `device`. Nothing waits for what a GPU computes."""
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor
