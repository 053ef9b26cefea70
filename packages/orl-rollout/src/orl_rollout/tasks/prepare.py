"""Draw tasks from the environments' listings into tasks.jsonl, the file that every trainer reads.

Rows are held in memory, about 300 bytes each, and written in shuffled order. The same seed gives the same bytes. The
file is replaced in one step, or not at all. A listing may count more tasks than memory holds.
"""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
from msgspec import Struct
from orl_core import ConfigError, OrlError, SessionError, boundary, row_of
from orl_core.config import EnvironmentConfig, RunConfig
from orl_core.text import plain

from orl_rollout.edge.files import replace
from orl_rollout.edge.secrets import Scrubber
from orl_rollout.openreward import OpenRewardClient
from orl_rollout.openreward.client import open_listing
from orl_rollout.openreward.environment import PAGE, TaskListing, list_tasks
from orl_rollout.tasks.file import overlap, read_tasks, trained_tasks

MOST_TASKS = 10_000_000  # in a file
SPARE = 10  # times the tasks to draw: so many candidates may replace duplicates
TRAINING, HELD_OUT = "splits", "eval_splits"  # the keys of the configuration


class PreparedTasks(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The number of rows by environment, in the order of the configuration, and of the duplicates left out."""

    counts: dict[str, int]
    duplicates: int = 0

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
        shares = _shares(config, listings, max_tasks)
        if not sum(shares):
            names = ", ".join(f"`{word}`" for word in splits)
            raise ConfigError(f"there is no task: the environments' {names} name none")
        with boundary(OrlError, f"writing {output}"):
            output = Path(output)
            output.parent.mkdir(parents=True, exist_ok=True)
            rows: dict[str, bytes] = {}
            counts, duplicates = dict.fromkeys(config.environments, 0), 0
            for listing, share in zip(listings, shares, strict=True):
                before = len(rows)
                duplicates += await _draw(client, listing, share, rows, seed)
                counts[listing.env_name] += len(rows) - before
            await _refuse_overlap(config, splits, rows.values())
            order = [*rows.values()]
            random.Random(str(seed)).shuffle(order)  # noqa: S311 - no secret is drawn
            replace(output, b"".join(order))
        return PreparedTasks(counts=counts, duplicates=duplicates)


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


def _cap(environment: EnvironmentConfig, listing: TaskListing) -> int:
    """Return how many tasks of a split may be drawn. A split that is held out is measured whole."""
    held_out = listing.split in environment.eval_splits and listing.split not in environment.splits
    return min(listing.size, (not held_out and environment.num_samples) or listing.size)


def _shares(config: RunConfig, listings: Sequence[TaskListing], max_tasks: int | None) -> list[int]:
    """Return how many tasks to draw from every listing: an environment's splits share its weight by their sizes."""
    caps = [_cap(config.environments[one.env_name], one) for one in listings]
    if min(sum(caps), max_tasks or sum(caps)) > MOST_TASKS:
        raise ConfigError(
            f"the environments list {sum(caps):,} tasks, and a file holds at most {MOST_TASKS:,}: set `num_samples`, "
            "or give --max-tasks"
        )
    if max_tasks is None or max_tasks >= sum(caps):
        return caps
    sizes = Counter[str]()  # of the environments
    for listing, cap in zip(listings, caps, strict=True):
        sizes[listing.env_name] += cap
    weights = [
        config.environments[listing.env_name].weight * cap / (sizes[listing.env_name] or 1)
        for listing, cap in zip(listings, caps, strict=True)
    ]
    return share_out(max_tasks, weights, caps)


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


def _order(listing: TaskListing, share: int, seed: int) -> Sequence[int]:
    """Return indices to draw `share` tasks from, in the order of drawing; some are spare."""
    if share == listing.size:
        return range(share)
    rng = random.Random(f"{seed} {listing.env_name} {listing.split}")  # noqa: S311 - no secret is drawn
    return rng.sample(range(listing.size), min(listing.size, SPARE * share + PAGE))


async def _draw(client: OpenRewardClient, listing: TaskListing, share: int, rows: dict[str, bytes], seed: int) -> int:
    """Draw `share` different tasks into `rows`, by their keys. Return how many duplicates others replaced."""
    scrubber, candidates = Scrubber.of(client.config), _order(listing, share, seed)
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
