"""Run the scenarios side by side, print the table, and return the faults."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from orl_core import OrlError
from rich.console import Console
from rich.table import Column, Table

from benchmarks.night import accidents
from benchmarks.night.processes import NotInTime
from benchmarks.night.scenario import Night
from benchmarks.night.verdict import Verdict
from benchmarks.servers import ROOT, child_environment

Scenario = Callable[[Night], Verdict]
CHECKPOINT_SECONDS = 120.0
COLUMNS = ("lost", "wrong", "ended", "went_on", "unclear", "left")
HEADINGS = ("planned", "lost", "wrong", "ended", "went on", "unclear", "open", "s")
LEGEND = """\
planned: rollouts. lost: for good. wrong: counted wrongly. ended: though healthy. went on: though sick.
unclear: ended without one clear line and the error in summary.json. open: sessions left on the server.
"""
# Scenarios of one lane run one after the other, lanes run side by side.
LANES: list[dict[str, Scenario]] = [
    {"outage-60": partial(accidents.outage, seconds=60.0)},
    {"outage-12": partial(accidents.outage, seconds=12.0), "dead": accidents.dead_environment},
    {"engine": accidents.engine_death, "kills": accidents.kills},
]
QUICK = ("outage-12", "engine")  # the breaker needs more rollouts than a quick night has


def run_scenarios(console: Console, *, quick: bool, seed: int = 0) -> list[str]:
    """Run the scenarios, print the table, and return what must be zero and is not."""
    started = time.monotonic()
    lanes = [[one for one in lane.items() if not quick or one[0] in QUICK] for lane in LANES]
    with tempfile.TemporaryDirectory(prefix="orl-night-", ignore_cleanup_errors=True) as folder:
        night = Night(folder=Path(folder), seed=seed, quick=quick)
        words = [sys.executable, "-m", "benchmarks.night.checkpoint", str(night.checkpoint)]
        subprocess.run(words, check=True, timeout=CHECKPOINT_SECONDS, cwd=ROOT, env=child_environment())
        with ThreadPoolExecutor(len(lanes)) as pool:
            verdicts = [verdict for lane in pool.map(partial(_lane, night, console), lanes) for verdict in lane]
    console.print(table(verdicts, time.monotonic() - started))
    console.print(LEGEND, end="", soft_wrap=True)
    for verdict in verdicts:
        for note in verdict.notes:
            console.print(f"{verdict.scenario}: {note}", markup=False, highlight=False, soft_wrap=True)
    return [fault for verdict in verdicts for fault in verdict.faults]


def _lane(night: Night, console: Console, lane: Sequence[tuple[str, Scenario]]) -> list[Verdict]:
    verdicts: list[Verdict] = []
    for name, play in lane:
        started = time.monotonic()
        try:
            verdict = play(night)
        except (NotInTime, OrlError, OSError, RuntimeError, ValueError) as fault:
            traceback.print_exc()
            verdict = Verdict(scenario=name, unclear=1, notes=[f"the scenario itself failed: {fault}"])
        verdict.seconds = time.monotonic() - started
        console.print(f"{verdict.scenario}: {verdict.seconds:.0f} s, {verdict.faults or 'well'}", markup=False)
        verdicts.append(verdict)
    return verdicts


def table(verdicts: Sequence[Verdict], seconds: float) -> Table:
    """Return the table of all scenarios, with their sums and the seconds of the whole night."""
    figures = (Column(name, justify="right", no_wrap=True) for name in HEADINGS)
    shown = Table(Column("scenario", no_wrap=True), *figures, box=None, padding=(0, 1, 0, 0))
    for verdict in verdicts:
        shown.add_row(verdict.scenario, f"{verdict.planned:,}", *_figures([verdict]), f"{verdict.seconds:.0f}")
    shown.add_row()
    shown.add_row("all", f"{sum(one.planned for one in verdicts):,}", *_figures(verdicts), f"{seconds:.0f}")
    return shown


def _figures(verdicts: Sequence[Verdict]) -> list[str]:
    return [f"{sum(getattr(one, name) for one in verdicts):,}" for name in COLUMNS]
