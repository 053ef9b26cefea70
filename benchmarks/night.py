"""The night: accidents of real runs of `orl rollout` at real clocks, and a sick run that must not continue.

A healthy run has each planned rollout in its journal once, with its reward, and leaves no session on the server. A run
that dies is continued by `orl rollout --continue`. Each wait is bounded.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import defaultdict
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import msgspec
from msgspec import Struct, structs
from orl_core import StopReason
from orl_core.task import Task, row_of
from orl_rollout import Entry, read_journal
from rich.console import Console
from rich.table import Column, Table

from benchmarks.servers import ServerProcess, child_environment, until
from benchmarks.world import TASK, make_world

MOST_TURNS, CONTEXT, AT_ONCE = 5, 4096, 64
CALL_SECONDS, TOKEN_SECONDS = 0.3, 0.006
STEP_REWARD = 0.125  # of each call but the last; exact in binary
PLAY_SECONDS = 300.0  # for a run to play its plan on a loaded machine, without its accidents
PATIENCE, END_SECONDS = 20.0, 120.0  # of a run with a dead environment, and to end after it
UNCOUNTED = frozenset({StopReason.ERROR, StopReason.ABORTED})
LEGEND = """\
planned: rollouts. lost: for good. wrong: counted wrongly. ended: though healthy. went on: though sick.
unclear: ended without one clear line and the error in summary.json. open: sessions left on the server.
"""


class Planned(Struct, frozen=True, kw_only=True):
    """The specification of one task: its number, the calls that it takes, and what the last one pays."""

    number: int
    turns: int
    final: float

    @property
    def reward(self) -> float:
        return (self.turns - 1) * STEP_REWARD + self.final

    @property
    def task(self) -> Task:
        return structs.replace(TASK, task_spec=structs.asdict(self))


class Verdict(Struct, kw_only=True):
    """The row of a scenario: what must be zero, but for `planned`. `notes` say what the numbers do not."""

    planned: int = 0
    lost: int = 0
    wrong: int = 0
    ended: int = 0
    went_on: int = 0
    unclear: int = 0
    open: int = 0
    notes: list[str] = []

    @property
    def faults(self) -> list[str]:
        return [f"{count} {name}" for name, count in list(structs.asdict(self).items())[1:-1] if count]


def planned(scenario: str, count: int, seed: int) -> list[Planned]:
    """Return `count` tasks of `scenario`; the same seed plans the same."""
    chance = random.Random(f"{scenario} {seed}")
    finals = (0.0, 0.25, 0.5, 1.0)
    return [
        Planned(number=number, turns=chance.randint(2, MOST_TURNS), final=chance.choice(finals))
        for number in range(count)
    ]


def judge(plan: Sequence[Planned], entries: Iterable[Entry]) -> tuple[int, int]:
    """Return how many rollouts are lost, and how many are counted wrongly. The last record of a rollout counts."""
    found: dict[str, list[Entry]] = defaultdict(list)
    for entry in entries:
        found[entry.key].append(entry)
    lost = wrong = 0
    for one in plan:
        records = found[f"{one.task.key}/0"]
        counted = [record for record in records if record.trajectory.stop_reason not in UNCOUNTED]
        last_counts = bool(counted) and counted[-1] is records[-1]
        lost += not last_counts
        right = [(record.reward, len(record.trajectory.turns)) for record in counted] == [(one.reward, one.turns)]
        wrong += bool(counted) and not (right and last_counts)
    return lost, wrong


class Night(Struct, frozen=True, kw_only=True):
    """One run of the benchmark, in `folder`; `quick` makes plans small."""

    folder: Path
    seed: int
    quick: bool


class Drive:
    """A plan that `orl rollout` plays, again after each death, with an environment and an engine of its own."""

    def __init__(self, night: Night, scenario: str, count: int, **rollout: Any) -> None:
        self.scenario, self._night, self._home = scenario, night, night.folder / scenario.replace(" ", "-")
        self._home.mkdir()
        self.plan = planned(scenario, count // 10 if night.quick else count, night.seed)
        self.verdict = Verdict(planned=len(self.plan))
        world = make_world(quick=True, turn=80, action_ids=40)
        self._calls = self._home / "calls"
        seconds, pace = (0.05, 0.0) if night.quick else (CALL_SECONDS, TOKEN_SECONDS)
        settings = {"text": world.said, "seconds": seconds, "pay": STEP_REWARD, "calls": str(self._calls)}
        self.environment = ServerProcess("environment", **settings)
        self.engine = ServerProcess("engine", answer=world.action, decode_seconds=pace)
        rows = (msgspec.json.encode(row_of(one.task)) + b"\n" for one in self.plan)
        (self._home / "tasks.jsonl").write_bytes(b"".join(rows))
        environment = {"base_url": self.environment.url, "max_turns": MOST_TURNS + 1}
        tree = {"environments": {TASK.env_name: environment}, "trainer": {"model": str(night.folder / "model")}}
        tree |= {"rollout": {"context_tokens": CONTEXT, "turn_tokens": 64, **rollout}, "thinking": False}
        (self._home / "config.yaml").write_text(json.dumps(tree), "utf-8")

    def __enter__(self) -> Self:
        self.environment.start()
        self.engine.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self.environment.kill()
        self.engine.kill()

    @property
    def run(self) -> Path:
        return self._home / "runs" / "night"

    @property
    def moment(self) -> float:
        """Return the share of the plan after which the accident comes, by the seed."""
        return random.Random(f"{self.scenario} at {self._night.seed}").uniform(0.2, 0.5)

    @contextmanager
    def playing(self) -> Generator[subprocess.Popen[bytes]]:
        """Play what is missing, for the length of the block."""
        begun = ["--continue", str(self.run)]
        new = ["--config", "config.yaml", "--task-data", "tasks.jsonl", "--name", "night"]
        words = [*(begun if self.run.exists() else new), "--engine", self.engine.url, "--concurrency", str(AT_ONCE)]
        command = [str(Path(sys.executable).with_name("orl")), "rollout", *words]
        with (
            (self._home / "log").open("ab") as log,
            subprocess.Popen(command, cwd=self._home, stdout=log, stderr=log, env=child_environment()) as process,
        ):
            try:
                yield process
            finally:
                process.kill()

    def until(self, share: float, process: subprocess.Popen[bytes]) -> None:
        """Wait until this share of the calls is made, or the run has ended."""
        wanted = share * sum(one.turns for one in self.plan)
        until(lambda: self._calls.stat().st_size >= wanted or process.poll() is not None, PLAY_SECONDS, f"{share:.0%}")

    def restart(self, server: ServerProcess, seconds: float) -> None:
        """Kill a server, and start it again at its address after `seconds`."""
        server.kill()
        time.sleep(seconds / 10 if self._night.quick else seconds)
        server.start()

    def said(self) -> str:
        return (self._home / "log").read_text("utf-8").strip().rpartition("\n")[2]

    def healthy(self, process: subprocess.Popen[bytes]) -> Verdict:
        """Judge a run that must play its plan to the end."""
        code = process.wait(PLAY_SECONDS)
        self.verdict.lost, self.verdict.wrong = judge(self.plan, read_journal(self.run))
        self.verdict.ended = int(code != 0)
        self.verdict.notes += [self.said()] * (code != 0)
        with urllib.request.urlopen(f"{self.environment.url}/open", timeout=30.0) as answer:
            self.verdict.open = json.load(answer)
        return self.verdict


def outage(night: Night, seconds: float) -> Verdict:
    """Kill the environment server in mid-batch, and start it again."""
    with Drive(night, f"environment down {seconds:g} s", 640) as drive, drive.playing() as process:
        drive.until(drive.moment, process)
        drive.restart(drive.environment, seconds)
        return drive.healthy(process)


def engine_deaths(night: Night) -> Verdict:
    """Kill the engine twice in mid-batch, and start it again."""
    with Drive(night, "engine down 15 s, twice", 640) as drive, drive.playing() as process:
        for share in (drive.moment, drive.moment + 0.3):
            drive.until(share, process)
            drive.restart(drive.engine, 15.0)
        return drive.healthy(process)


def kills(night: Night) -> Verdict:
    """Kill the run twice in mid-batch, and continue it. What the server still has must be closed at the end."""
    with Drive(night, "two SIGKILLs", 640) as drive:
        for share in (drive.moment, drive.moment + 0.3):
            with drive.playing() as process:
                drive.until(share, process)
        with drive.playing() as process:
            return drive.healthy(process)


def dead_environment(night: Night) -> Verdict:
    """Kill the environment server for good."""
    with Drive(night, "environment dead", 320, patience=PATIENCE) as drive, drive.playing() as process:
        drive.until(drive.moment, process)
        drive.environment.kill()
        code = process.wait(PATIENCE + END_SECONDS)
        _, drive.verdict.wrong = judge(drive.plan, read_journal(drive.run))
        error = json.loads((drive.run / "summary.json").read_bytes()).get("error", "")
        drive.verdict.went_on, drive.verdict.unclear = int(not code), int(drive.said() != f"orl: error: {error}")
        drive.verdict.notes.append(f"exit code {code}: {error}")
        return drive.verdict


Scenario = Callable[[Night], Verdict]
# Scenarios of one lane run one after the other, lanes run side by side.
LANES: list[dict[str, Scenario]] = [
    {"environment down 60 s": lambda night: outage(night, 60.0)},
    {"environment down 12 s": lambda night: outage(night, 12.0), "environment dead": dead_environment},
    {"engine down 15 s, twice": engine_deaths, "two SIGKILLs": kills},
]
QUICK = ("environment down 12 s",)  # it restarts a server, as the others do; the breaker needs more rollouts


def run(console: Console, *, quick: bool, seed: int = 0) -> list[str]:
    """Run the scenarios, print the table, and return what must be zero and is not."""
    names = [field.name.replace("_", " ") for field in structs.fields(Verdict)[:-1]]
    table = Table(Column("scenario", no_wrap=True), *names, "s", box=None, padding=(0, 1, 0, 0))
    complaints: list[str] = []

    def play(lane: dict[str, Scenario]) -> None:
        for name, scenario in lane.items():
            started = time.monotonic()
            try:
                verdict = scenario(night)
            except Exception as fault:  # noqa: BLE001  the others continue
                verdict = Verdict(unclear=1, notes=[f"the scenario itself failed: {fault!r}"])
            figures = [str(value) for value in structs.astuple(verdict)[:-1]]
            table.add_row(name, *figures, f"{time.monotonic() - started:.0f}")
            complaints.extend(f"{name}: {fault}" for fault in verdict.faults)
            for note in verdict.notes:
                console.print(f"{name}: {note}", markup=False, highlight=False, soft_wrap=True)

    with tempfile.TemporaryDirectory(prefix="orl-night-", ignore_cleanup_errors=True) as folder:
        night = Night(folder=Path(folder), seed=seed, quick=quick)
        make_world(quick=True).hf.save_pretrained(night.folder / "model")
        lanes = [{name: one for name, one in lane.items() if not quick or name in QUICK} for lane in LANES]
        with ThreadPoolExecutor(len(lanes)) as pool:
            list(pool.map(play, lanes))
    console.print(table)
    console.print(LEGEND, end="", soft_wrap=True)
    return complaints
