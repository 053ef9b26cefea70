"""Measure the import of orl and `orl --help`: medians of interleaved runs, each in an interpreter of its own.

The start of an empty interpreter is measured in the same rounds and taken off.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

from rich.console import Console
from rich.table import Table

from benchmarks.servers import ROOT, child_environment

STATEMENTS = {
    "nothing": "pass",
    "msgspec": "import msgspec",
    "orl_core": "import orl_core, orl_core.config, orl_core.datum, orl_core.render, orl_core.reward, orl_core.tools",
    "orl_rollout": "import orl_rollout.loop.loop, orl_rollout.runtime.runtime, orl_rollout.sglang.client, "
    "orl_rollout.openreward",
    "orl --help": "import sys; sys.argv = ['orl', '--help']; from orl_launcher.main import main; main()",
}
TARGETS = {"orl_core": "20 above msgspec", "orl --help": "250"}


def run(console: Console, *, quick: bool) -> list[str]:
    """Measure and print; what does not run at all."""
    seconds: dict[str, list[float]] = {name: [] for name in STATEMENTS}
    failed: set[str] = set()
    rounds = 1 if quick else 21
    for _ in range(rounds):
        for name, statement in STATEMENTS.items():
            started = time.perf_counter()
            command = [sys.executable, "-c", statement]
            process = subprocess.run(command, check=False, stdout=subprocess.DEVNULL, cwd=ROOT, env=child_environment())
            seconds[name].append(time.perf_counter() - started)
            failed |= {name} if process.returncode else set()
    medians = {name: 1000 * statistics.median(values) for name, values in seconds.items()}
    table = Table("", "ms", "above an empty interpreter", "above msgspec", "target")
    for name, value in medians.items():
        above = (f"{value - medians[other]:.1f}" for other in ("nothing", "msgspec"))
        table.add_row(name, f"{value:.1f}", *above, TARGETS.get(name, ""))
    console.print(f"medians of {rounds} interleaved rounds")
    console.print(table)
    return [f"`{STATEMENTS[name]}` failed" for name in sorted(failed)]
