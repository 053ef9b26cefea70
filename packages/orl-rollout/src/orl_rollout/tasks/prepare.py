"""Draw tasks from the environments' listings into tasks.jsonl, the file that every trainer reads.

Rows are spooled to a file as pages of a listing arrive, and copied from there in shuffled order. The same seed gives
the same bytes: every listing has a random generator of its own. The file is replaced in one step, or not at all.
"""

from __future__ import annotations

import heapq
import random
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from msgspec import Struct
from orl_core.config import RunConfig
from orl_core.errors import ConfigError, OrlError, SessionError, boundary
from orl_core.text import plain

from orl_rollout.openreward import OpenRewardClient
from orl_rollout.openreward.listing import PAGE, TaskListing, list_tasks, open_listing
from orl_rollout.tasks.spool import Spool

MOST_TASKS = 10_000_000  # in a file, and in a listing whose whole order is shuffled
SPARE = 1_000_000  # tasks of a larger listing that may replace duplicates


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
    splits: Literal["splits", "eval_splits"] = "splits",
) -> PreparedTasks:
    """Write the tasks of all environments to `output`: sampled, shuffled, without duplicates.

    `num_samples` caps every split. `max_tasks` caps the whole and is shared out by the environments' `weight`, as far
    as each has tasks; without it every task is taken, whatever the weights.

    Raises:
        ConfigError: an environment or split does not exist, or there is no task at all; `output` is as before.
        SessionError: a server cannot be reached or fails, or a task echoes a secret; `output` is as before.
        OrlError: `output` cannot be written.
    """
    async with OpenRewardClient(config) as client:
        listings = [
            await open_listing(client, name, split)
            for name, environment in config.environments.items()
            for split in getattr(environment, splits)
        ]
        shares = _shares(config, listings, max_tasks)
        if not sum(shares):
            raise ConfigError(f"there is no task: the environments' `{splits}` name none")
        with boundary(OrlError, f"writing {output}"):
            output = Path(output)
            output.parent.mkdir(parents=True, exist_ok=True)
            with Spool(output.parent) as spool:
                for listing, share in zip(listings, shares, strict=True):
                    await _draw(client, listing, share, spool, f"{seed} {listing.env_name} {listing.split}")
                spool.write(output, _shuffled(len(spool), str(seed)))
        counts = {name: spool.counts.get(name, 0) for name in config.environments}
        return PreparedTasks(counts=counts, duplicates=spool.duplicates)


def _shares(config: RunConfig, listings: Sequence[TaskListing], max_tasks: int | None) -> list[int]:
    """Return how many tasks to draw from every listing."""
    caps = [
        min(listing.size, config.environments[listing.env_name].num_samples or listing.size) for listing in listings
    ]
    if min(sum(caps), max_tasks or sum(caps)) > MOST_TASKS:
        raise ConfigError(
            f"the environments list {sum(caps):,} tasks, and a file holds at most {MOST_TASKS:,}: set `num_samples`, "
            "or give --max-tasks"
        )
    if max_tasks is None or max_tasks >= sum(caps):
        return caps
    members: dict[str, list[int]] = {}
    for n, listing in enumerate(listings):
        members.setdefault(listing.env_name, []).append(n)
    weights = [config.environments[name].weight for name in members]
    totals = share_out(max_tasks, weights, [sum(caps[n] for n in group) for group in members.values()])
    shares: dict[int, int] = {}
    for total, group in zip(totals, members.values(), strict=True):
        sizes = [caps[n] for n in group]
        shares.update(zip(group, share_out(total, sizes, sizes), strict=True))
    return [shares[n] for n in range(len(listings))]


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


async def _draw(client: OpenRewardClient, listing: TaskListing, share: int, spool: Spool, seed: str) -> None:
    """Draw `share` different tasks of `listing` into the spool; duplicates are replaced while there are others."""
    candidates = range(listing.size) if share == listing.size else _order(listing.size, share, seed)
    drawn, start = 0, 0
    while drawn < share and start < len(candidates):
        batch = candidates[start : start + share - drawn]
        start += len(batch)
        async for task in list_tasks(client, listing, batch):
            if client.scrubber.find_in(plain(task)):
                raise SessionError(f"listing the tasks of {listing.env_name}: a secret stands in one of them")
            try:
                drawn += spool.add(task)
            except UnicodeEncodeError:
                what = f"task {task.index} of split `{listing.split}` holds a lone surrogate, which is no text"
                raise SessionError(f"listing the tasks of {listing.env_name}: {what}") from None


def _order(size: int, share: int, seed: str) -> array[int]:
    """Return numbers below `size` in an order that the seed alone decides: all, or enough of a very large listing."""
    if size <= MOST_TASKS:
        return _shuffled(size, seed)
    most = min(size, max(share, min(10 * share + PAGE, SPARE)))
    return array("Q", random.Random(seed).sample(range(size), most))  # noqa: S311 - no secret is drawn


def _shuffled(size: int, seed: str) -> array[int]:
    """Return the numbers below `size` in an order that the seed alone decides."""
    order = array("Q", range(size))
    random.Random(seed).shuffle(order)  # noqa: S311 - no secret is drawn
    return order
