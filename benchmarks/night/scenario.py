"""What scenarios share: a folder, a checkpoint, a seed, servers, and a driver that plays a plan."""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from benchmarks.night.checkpoint import ACTION
from benchmarks.night.driver import Settings
from benchmarks.night.plan import Planned, planned, write_plan
from benchmarks.night.processes import Program, ServerProcess, program, until
from benchmarks.night.verdict import Verdict, judge

BATCH = 64
CALL_SECONDS = 0.3
TOKEN_SECONDS = 0.01
PLAY_SECONDS = 300.0  # for a driver to play its plan on a loaded machine, without its accidents


class Night(Struct, frozen=True, kw_only=True):
    """One run of the benchmark. `folder` is removed at its end; `quick` makes plans small."""

    folder: Path
    seed: int
    quick: bool = False
    long: bool = False

    @property
    def checkpoint(self) -> Path:
        """Return the folder of the checkpoint."""
        return self.folder / "checkpoint"

    @property
    def action(self) -> list[int]:
        """Return the ids of the call that the engine makes."""
        return msgspec.json.decode((self.checkpoint / ACTION).read_bytes(), type=list[int])

    def wait(self, seconds: float) -> float:
        """Return the seconds of an accident."""
        return seconds / 10 if self.quick else seconds

    @property
    def batch(self) -> int:
        """Return the number of rollouts of a batch."""
        return BATCH // 8 if self.quick else BATCH

    def count(self, rollouts: int) -> int:
        """Return the number of rollouts of a plan."""
        return rollouts // 10 if self.quick else rollouts

    def environment(self) -> ServerProcess:
        """Make an environment server."""
        return ServerProcess("environment", seconds=0.05 if self.quick else CALL_SECONDS)

    def engine(self, **settings: Any) -> ServerProcess:
        """Make an engine."""
        pace = 0.0 if self.quick else TOKEN_SECONDS
        return ServerProcess("engine", action=self.action, token_seconds=pace, **settings)


class Drive:
    """A plan that a driver plays, again after each death, in a folder of its own."""

    def __init__(self, night: Night, scenario: str, count: int, config: dict[str, Any], engine: str) -> None:
        self.home = night.folder / scenario.replace(" ", "-")
        self.home.mkdir()
        self.folder = self.home / "run"
        self.begun, self.returned = self.home / "begun", self.home / "returned"
        self.plan: list[Planned] = planned(scenario, count, night.seed)
        write_plan(self.home / "plan.json", self.plan)
        self._settings = Settings(
            config=config,
            checkpoint=str(night.checkpoint),
            folder=str(self.folder),
            engine=engine,
            plan=str(self.home / "plan.json"),
            begun=str(self.begun),
            returned=str(self.returned),
            batch=night.batch,
        )
        self._starts = 0

    def in_folder(self, folder: Path) -> None:
        """Let the run's folder be another one."""
        self.folder = folder
        self._settings = msgspec.structs.replace(self._settings, folder=str(folder))

    @contextmanager
    def driver(self) -> Generator[Program]:
        """Start the driver for the length of the block."""
        self._starts += 1
        settings = self.home / f"settings-{self._starts}.json"
        settings.write_bytes(msgspec.json.encode(self._settings))
        words = [sys.executable, "-m", "benchmarks.night.driver", str(settings)]
        with program(words, self.home / f"driver-{self._starts}.log") as running:
            yield running

    def done(self) -> int:
        """Count the rollouts that `Runtime.play` returned."""
        return self.returned.read_bytes().count(b"\n") if self.returned.is_file() else 0

    def until(self, share: float, running: Program) -> None:
        """Wait until this share of the plan is done, or the driver has ended."""
        wanted = share * len(self.plan)
        until(lambda: self.done() >= wanted or running.code() is not None, PLAY_SECONDS, f"{share:.0%} of the plan")

    def judged(self, scenario: str) -> Verdict:
        """Return the verdict on what is on disk."""
        verdict = Verdict(scenario=scenario, planned=len(self.plan))
        judge(verdict, self.folder, self.plan, self.begun, self.returned)
        return verdict


def healthy_end(running: Program, seconds: float, verdict: Verdict) -> None:
    """Wait for the end of a driver that must play its plan to the end, and note an end before that."""
    code = running.wait(seconds)
    if code is None:
        verdict.ended = 1
        verdict.notes.append(f"it still plays after {seconds:g} s")
    elif code:
        verdict.ended = 1
        verdict.notes.append(last_line(running))


def last_line(running: Program) -> str:
    """Return the last line that a program wrote."""
    lines = [line for line in running.output().splitlines() if line.strip()]
    return " ".join(lines[-1].split())[:160] if lines else "it wrote nothing"
