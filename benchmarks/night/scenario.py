"""The stage of a scenario: a checkpoint, servers that can be killed, and a driver that plays a plan."""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Self

import msgspec
from msgspec import Struct

from benchmarks.night.checkpoint import ACTION
from benchmarks.night.driver import Settings
from benchmarks.night.plan import Planned, configuration, planned, write_plan
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

    @property
    def checkpoint(self) -> Path:
        """Return the folder of the tokenizer."""
        return self.folder / "checkpoint"

    def wait(self, seconds: float) -> float:
        """Return the seconds of an accident."""
        return seconds / 10 if self.quick else seconds


class Drive:
    """A plan that a driver plays, again after each death, against an environment and an engine of its own."""

    def __init__(
        self,
        night: Night,
        scenario: str,
        count: int,
        *,
        folder: Path | None = None,
        rollout: dict[str, Any] | None = None,
        **config: Any,
    ) -> None:
        self.home = night.folder / scenario.replace(" ", "-")
        self.home.mkdir()
        self.folder = folder or self.home / "run"
        self.plan: list[Planned] = planned(scenario, count // 10 if night.quick else count, night.seed)
        write_plan(self.home / "plan.json", self.plan)
        pace = 0.0 if night.quick else TOKEN_SECONDS
        answer = msgspec.json.decode((night.checkpoint / ACTION).read_bytes(), type=list[int])
        self.environment = ServerProcess("night.environment", seconds=0.05 if night.quick else CALL_SECONDS)
        self.engine = ServerProcess("engine", answer=answer, decode_seconds=pace)
        self._settings = Settings(
            config={**configuration(self.environment.url, **(rollout or {})), **config},
            checkpoint=str(night.checkpoint),
            folder=str(self.folder),
            engine=self.engine.url,
            plan=str(self.home / "plan.json"),
            begun=str(self.home / "begun"),
            returned=str(self.home / "returned"),
            batch=BATCH // 8 if night.quick else BATCH,
        )
        self._servers = ExitStack()
        self._starts = 0

    def __enter__(self) -> Self:
        self._servers.enter_context(self.environment)
        self._servers.enter_context(self.engine)
        return self

    def __exit__(self, *raised: object) -> None:
        self._servers.close()

    @contextmanager
    def driver(self) -> Generator[Program]:
        """Start the driver for the length of the block."""
        self._starts += 1
        settings = self.home / f"settings-{self._starts}.json"
        settings.write_bytes(msgspec.json.encode(self._settings))
        words = [sys.executable, "-m", "benchmarks.night.driver", str(settings)]
        with program(words, self.home / f"driver-{self._starts}.log") as running:
            yield running

    def until(self, share: float, running: Program) -> None:
        """Wait until this share of the plan is done, or the driver has ended."""
        wanted, returned = share * len(self.plan), Path(self._settings.returned)

        def done() -> bool:
            lines = returned.read_bytes().count(b"\n") if returned.is_file() else 0
            return lines >= wanted or running.code() is not None

        until(done, PLAY_SECONDS, f"{share:.0%} of the plan")

    def judged(self, ending: Verdict) -> Verdict:
        """Add what is on disk and what the server still has open."""
        ending.planned = len(self.plan)
        judge(ending, self.folder, self.plan, Path(self._settings.begun), Path(self._settings.returned))
        if self.environment.runs:
            ending.left = len(self.environment.ask("/night/open"))
        return ending


def healthy_end(running: Program, seconds: float, verdict: Verdict) -> None:
    """Wait for the end of a driver that must play its plan to the end, and note an end before that."""
    code = running.wait(seconds)
    verdict.ended = int(code != 0)
    if code is None:
        verdict.notes.append(f"it still plays after {seconds:g} s")
    elif code:
        verdict.notes.append(last_line(running))


def last_line(running: Program) -> str:
    """Return the last line that a program wrote."""
    lines = [line for line in running.output().splitlines() if line.strip()]
    return " ".join(lines[-1].split())[:160] if lines else "it wrote nothing"
