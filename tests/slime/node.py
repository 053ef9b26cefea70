"""A node of slime's distributed fully async rollout: a process with slime's own generation actor.

Run as a program: `SPEC ANSWER`. The spec holds slime's arguments, the first task of this node's reader and its number
of slots. A process holds one actor: it ends the loop's threads when it is closed.
"""

from __future__ import annotations

import asyncio
import json
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

from orl_cluster.hooks.worker import aclose
from orl_core.errors import RunAborted

from tests.slime.host import arguments, of_slime, sources

STEP, GROUPS = 4, 3  # slime's number of the batch; groups that are asked for before the node pauses


class Reader:
    """What slime's queue gives a node, from memory."""

    reader_id, controller = "node", None

    def __init__(self, args: Namespace, first: int) -> None:
        self.args = args
        self._source = of_slime(f"{sources()}.RolloutDataSourceWithBuffer")(args)
        self._source.get_samples(first)

    def open(self, args: Namespace) -> Reader:
        """Return what the actor draws from."""
        assert args.prompt_data == self.args.prompt_data
        return self

    async def get_samples_async(self, count: int) -> list[list[Any]]:
        """Return new groups, or those that came back."""
        return self._source.get_samples(count)

    def add_samples(self, groups: list[list[Any]]) -> None:
        """Take back what was not played."""
        self._source.add_samples(groups)

    def materialize_samples(self, group: list[Any]) -> list[Any]:
        """Return the group as it is."""
        return group

    def close(self) -> None:
        """Nothing is left open."""


async def play(reader: Reader, slots: int, played: list[tuple[list[Any] | None, Any]]) -> None:
    """Play until GROUPS are there, and what is under way: each group, None if it was dropped, and the verdict."""
    actor = of_slime("slime.rollout.fully_async_distributed._GenerationActor")(reader, slots)
    await actor.start(STEP)
    try:
        played.extend([await actor.next() for _ in range(GROUPS)])
        await actor.pause()
        while (last := await actor.next()) is not None:
            played.append(last)
    finally:
        loop = of_slime("slime.utils.async_utils.get_async_loop")().loop
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(aclose(), loop))
        await actor.close()


def main(spec: Path, answer: Path) -> None:
    """Play, and write the samples that slime's manager would get, the groups dropped, and what ended the run."""
    given = json.loads(spec.read_text(encoding="utf-8"))
    checkpoint, tasks = map(Path, given["paths"])
    args = arguments(checkpoint, tasks, given["url"], given["config"], **given["changes"])
    played, ended = list[tuple[list[Any] | None, Any]](), ""
    try:
        asyncio.run(play(Reader(args, given["first"]), given["slots"], played))
    except RunAborted as fault:
        ended = str(fault)
    samples = [(one.rollout_id, one.metadata) for group, _ in played for one in group or ()]
    dropped = [verdict.reason for group, verdict in played if group is None]
    answer.write_text(json.dumps({"samples": samples, "dropped": dropped, "ended": ended}), encoding="utf-8")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
