"""Draw tasks from the environments' listings into tasks.jsonl, the file that every trainer reads.

Rows are held in memory, about 300 bytes each, and written in shuffled order. The same seed gives the same bytes. The
file is replaced in one step, or not at all. Without a difficulty every task may be drawn, and a listing may count more
tasks than memory holds.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
from msgspec import Struct
from orl_core import ConfigError, OrlError, SessionError, boundary, row_of
from orl_core.config import DifficultyConfig, EnvironmentConfig, RunConfig
from orl_core.text import plain

from orl_rollout.edge.files import replace
from orl_rollout.edge.secrets import Scrubber
from orl_rollout.openreward import OpenRewardClient
from orl_rollout.openreward.client import open_listing
from orl_rollout.openreward.environment import PAGE, TaskListing, list_tasks
from orl_rollout.openreward.platform import mean_rewards
from orl_rollout.tasks.file import overlap, read_tasks, trained_tasks

MOST_TASKS = 10_000_000  # in a file
SPARE = 10  # times the tasks to draw: so many candidates may replace duplicates
EVEN, LEAST = 0.25, 0.01  # the weight of a task that is won half of the time, and the least of any task
TRAINING, HELD_OUT = "splits", "eval_splits"  # the keys of the configuration


class PreparedTasks(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The number of rows by environment, in the order of the configuration, and of the tasks left out.

    `skipped` are those of another difficulty.
    """

    counts: dict[str, int]
    duplicates: int = 0
    skipped: int = 0

    @property
    def total(self) -> int:
        """Return the number of rows."""
        return sum(self.counts.values())


async def prepare(
    config: RunConfig,
    output: str | Path,
    *,
    max_tasks: int | None = None,
    seed: int = 0,
    splits: Sequence[str] = (TRAINING,),
) -> PreparedTasks:
    """Write the tasks of all environments to `output`: sampled, shuffled, without duplicates.

    `splits` are names of splits; `splits` and `eval_splits` stand for those that the configuration names.
    `num_samples` caps every split but those held out. `max_tasks` caps the whole and is shared out by the environments'
    `weight`, as far as each has tasks; without it every task is taken, whatever the weights.

    Raises:
        ConfigError: an environment, a split or any task is missing, or a held-out one trains; `output` is as before.
        SessionError: a server cannot be reached or fails, or a task echoes a secret; `output` is as before.
        OrlError: `output` cannot be written.
    """
    async with OpenRewardClient(config) as client:
        listings = [
            await open_listing(client, name, split)
            for name, environment in config.environments.items()
            for split in splits_of(environment, splits)
        ]
        selections = [await _select(config, listing) for listing in listings]
        shares = _shares(config, selections, max_tasks)
        if not sum(shares):
            names = ", ".join(f"`{word}`" for word in splits)
            listed = sum(one.size for one in listings)
            why = "none is of that difficulty" if listed else f"the environments' {names} name none"
            raise ConfigError(f"there is no task: {why}")
        with boundary(OrlError, f"writing {output}"):
            output = Path(output)
            output.parent.mkdir(parents=True, exist_ok=True)
            rows: dict[str, bytes] = {}
            counts, duplicates = dict.fromkeys(config.environments, 0), 0
            for selection, share in zip(selections, shares, strict=True):
                before = len(rows)
                duplicates += await _draw(client, selection, share, rows, seed)
                counts[selection.listing.env_name] += len(rows) - before
            await _refuse_overlap(config, splits, rows.values())
            order = [*rows.values()]
            random.Random(str(seed)).shuffle(order)  # noqa: S311 - no secret is drawn
            replace(output, b"".join(order))
        skipped = sum(one.listing.size - one.size for one in selections)
        return PreparedTasks(counts=counts, duplicates=duplicates, skipped=skipped)


async def _refuse_overlap(config: RunConfig, splits: Sequence[str], rows: Iterable[bytes]) -> None:
    """Refuse `rows` that a run would also evaluate, if they are those to train on."""
    holds_out = any(one.eval_splits for one in config.environments.values())
    if [*splits] != [TRAINING] or config.eval.allow_overlap or not holds_out:
        return
    with TemporaryDirectory() as folder:
        path = Path(folder, "held-out.jsonl")
        await prepare(config, path, max_tasks=config.eval.max_tasks, seed=config.trainer.seed, splits=(HELD_OUT,))
        overlap(config, trained_tasks(rows), read_tasks(path, config))


def splits_of(environment: EnvironmentConfig, chosen: Sequence[str]) -> list[str]:
    """Return the splits that `chosen` names: `splits` and `eval_splits` are those of the configuration."""
    named = {TRAINING: environment.splits, HELD_OUT: environment.eval_splits}
    return list(dict.fromkeys(split for word in chosen for split in named.get(word, (word,))))


def _is_held_out(environment: EnvironmentConfig, split: str) -> bool:
    return split in environment.eval_splits and split not in environment.splits


async def _select(config: RunConfig, listing: TaskListing) -> Selection:
    environment = config.environments[listing.env_name]
    wanted = None if _is_held_out(environment, listing.split) else environment.difficulty
    return await select(listing, environment, wanted)


def _cap(environment: EnvironmentConfig, selection: Selection) -> int:
    """Return how many tasks of a split may be drawn. A split that is held out is measured whole."""
    most = None if _is_held_out(environment, selection.listing.split) else environment.num_samples
    return min(selection.size, most or selection.size)


def _shares(config: RunConfig, selections: Sequence[Selection], max_tasks: int | None) -> list[int]:
    """Return how many tasks to draw from every listing."""
    caps = [_cap(config.environments[one.listing.env_name], one) for one in selections]
    if min(sum(caps), max_tasks or sum(caps)) > MOST_TASKS:
        raise ConfigError(
            f"the environments list {sum(caps):,} tasks, and a file holds at most {MOST_TASKS:,}: set `num_samples`, "
            "or give --max-tasks"
        )
    if max_tasks is None or max_tasks >= sum(caps):
        return caps
    members: dict[str, list[int]] = {}
    for n, selection in enumerate(selections):
        members.setdefault(selection.listing.env_name, []).append(n)
    weights = [config.environments[name].weight for name in members]
    totals = share_out(max_tasks, weights, [sum(caps[n] for n in group) for group in members.values()])
    shares: dict[int, int] = {}
    for total, group in zip(totals, members.values(), strict=True):
        sizes = [caps[n] for n in group]
        shares.update(zip(group, share_out(total, sizes, sizes), strict=True))
    return [shares[n] for n in range(len(selections))]


def share_out(total: int, weights: Sequence[float], caps: Sequence[int]) -> list[int]:
    """Split `total` by `weights` into whole shares, none above its cap; what a cap refuses goes to the others.

    Each one goes to the share that is furthest behind its weight, so the result is within one of proportional.
    """
    shares = [0] * len(caps)
    behind = [(1 / weights[n], n) for n, cap in enumerate(caps) if cap]
    heapq.heapify(behind)
    for _ in range(min(total, sum(caps))):
        _, n = heapq.heappop(behind)
        shares[n] += 1
        if shares[n] < caps[n]:
            heapq.heappush(behind, ((shares[n] + 1) / weights[n], n))
    return shares


async def _draw(client: OpenRewardClient, selection: Selection, share: int, rows: dict[str, bytes], seed: int) -> int:
    """Draw `share` different tasks into `rows`, by their keys. Return how many duplicates others replaced."""
    listing, scrubber = selection.listing, Scrubber.of(client.config)
    candidates = selection.order(share, f"{seed} {listing.env_name} {listing.split}")
    most, drawn, start = len(rows) + share, len(rows), 0
    while len(rows) < most and start < len(candidates):
        batch = candidates[start : start + most - len(rows)]
        start += len(batch)
        async for task in list_tasks(listing, batch):
            if scrubber.find_in(plain(task)):
                raise SessionError(f"listing the tasks of {listing.env_name}: one of them holds a secret")
            try:
                rows.setdefault(task.key, msgspec.json.encode(row_of(task), order="sorted") + b"\n")
            except UnicodeEncodeError:
                what = f"task {task.index} of split `{listing.split}` holds a lone surrogate, which is no text"
                raise SessionError(f"listing the tasks of {listing.env_name}: {what}") from None
    return start + drawn - len(rows)


class Selection(Struct, frozen=True, kw_only=True):
    """The tasks of a listing that may be drawn: `indices`, or all. `weights` are the chances of each, or equal."""

    listing: TaskListing
    indices: Sequence[int]
    weights: Sequence[float] | None = None

    @property
    def size(self) -> int:
        """Return how many tasks may be drawn."""
        return len(self.indices)

    def order(self, share: int, seed: str) -> Sequence[int]:
        """Return indices to draw `share` tasks from, in the order of drawing; some are spare."""
        if share == self.size:
            return self.indices
        rng = random.Random(seed)  # noqa: S311 - no secret is drawn
        if self.weights is None:
            return rng.sample(self.indices, min(self.size, SPARE * share + PAGE))
        # exponential clocks: the chance to be next is the share of the weight
        clocks = [-math.log(1.0 - rng.random()) / weight for weight in self.weights]
        return [self.indices[n] for n in sorted(range(self.size), key=clocks.__getitem__)]


async def select(listing: TaskListing, environment: EnvironmentConfig, wanted: DifficultyConfig | None) -> Selection:
    """Return the tasks of `listing` of the difficulty `wanted`; all without one.

    Raises:
        ConfigError: the server does not number its tasks, or no task of it is known.
        SessionError: OpenReward does not say how difficult they are.
    """
    if wanted is None:
        return Selection(listing=listing, indices=range(listing.size))
    where = f"split `{listing.split}` of {listing.env_name}"
    if listing.tasks is not None:
        raise ConfigError(f"{where} does not number its tasks: remove `difficulty`")
    known = await mean_rewards(listing.env_name, listing.split, environment.variant, wanted)
    if not any(0 <= index < listing.size for index in known):
        raise ConfigError(f"OpenReward knows the difficulty of no task in {where}: remove `difficulty`")
    indices = [index for index in range(listing.size) if _fits(known.get(index), wanted)]
    weights = [_weight(index, known, environment.success_reward) for index in indices] if wanted.prefer_even else None
    return Selection(listing=listing, indices=indices, weights=weights)


def _fits(reward: float | None, wanted: DifficultyConfig) -> bool:
    if reward is None:
        return wanted.unknown == "keep"
    low = -math.inf if wanted.min_reward is None else wanted.min_reward
    high = math.inf if wanted.max_reward is None else wanted.max_reward
    return low <= reward <= high


def _weight(index: int, known: Mapping[int, float], success_reward: float) -> float:
    """Return the variance of the task's success, p(1 - p). An unknown task counts as even."""
    if index not in known:
        return EVEN
    share = min(1.0, max(0.0, known[index] / success_reward if success_reward > 0 else known[index]))
    return max(LEAST, share * (1 - share))
