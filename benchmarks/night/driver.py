"""The program that plays a plan, as a trainer does: batch after batch, and after its death those that are missing.

    python -m benchmarks.night.driver SETTINGS

It uses public entry points alone. What the journal in its folder holds is not played again. It notes each rollout in
`begun` before it is played and in `returned` after it, outside of the folder, so that the benchmark can judge what orl
kept. It ends with 0, or with 1 and one line if the run was aborted.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct
from orl_core import OrlError, RunAborted, StopReason, decode_config
from orl_rollout import Entry, RolloutRequest, Runtime, SglangEngine, open_runtime, read_journal

from benchmarks.night.plan import CONTEXT, Planned, read_plan
from benchmarks.servers import many_files

SAMPLING = {"temperature": 1.0}
UNCOUNTED = frozenset({StopReason.ERROR, StopReason.ABORTED})


class Settings(Struct, frozen=True, kw_only=True):
    """The settings of a driver; the files are paths."""

    config: dict[str, Any]
    checkpoint: str
    folder: str
    engine: str
    plan: str
    begun: str
    returned: str
    batch: int


class Returned(Struct, frozen=True, kw_only=True):
    """One outcome that `Runtime.play` returned."""

    name: str
    reward: float
    stop_reason: str
    error: str = ""


def counts(entry: Entry) -> bool:
    """Tell whether a trainer counts this record."""
    return entry.trajectory.stop_reason not in UNCOUNTED


class Notes:
    """A file of lines that outlives this process, however it ends."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def add(self, line: Any) -> None:
        """Append a line of JSON in one write."""
        os.write(self._file, msgspec.json.encode(line) + b"\n")


def missing(folder: Path, plan: Path) -> list[Planned]:
    """Return the rollouts of the plan that the journal in `folder` does not count."""
    done = {entry.key for entry in read_journal(folder) if counts(entry)} if folder.is_dir() else set[str]()
    return [one for one in read_plan(plan) if one.name not in done]


async def play(settings: Settings) -> None:
    """Play what the journal lacks."""
    folder = Path(settings.folder)
    left = missing(folder, Path(settings.plan))
    begun, returned = Notes(settings.begun), Notes(settings.returned)

    async def one(planned: Planned, runtime: Runtime, engine: SglangEngine) -> None:
        begun.add(planned.name)
        outcome = await runtime.play(
            RolloutRequest(task=planned.task, rollout_id=planned.name, sampling=SAMPLING), engine
        )
        trajectory = outcome.trajectory
        returned.add(
            Returned(
                name=planned.name,
                reward=outcome.reward,
                stop_reason=str(trajectory.stop_reason),
                error=trajectory.error,
            )
        )

    config = decode_config(settings.config, "night")
    async with (
        open_runtime(config, settings.checkpoint, folder, 8) as runtime,
        SglangEngine(settings.engine, context_tokens=CONTEXT) as engine,
    ):
        for start in range(0, len(left), settings.batch):
            async with asyncio.TaskGroup() as group:
                for planned in left[start : start + settings.batch]:
                    group.create_task(one(planned, runtime, engine))


def main() -> int:
    many_files()
    settings = msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=Settings)
    try:
        asyncio.run(play(settings))
    except* OrlError as errors:
        aborted = errors.split(RunAborted)[0] or errors
        first: BaseException = aborted
        while isinstance(first, BaseExceptionGroup):
            first = first.exceptions[0]
        print(f"ended: {first}", flush=True)
        code = 1
    else:
        code = 0
    return code


if __name__ == "__main__":
    sys.exit(main())
