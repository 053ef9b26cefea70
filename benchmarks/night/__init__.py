"""The night: accidents of real runs at real clocks, and sick runs that must not continue. `run` is in the module `run`.

Only public entry points are used. Each wait is bounded, and only processes that
the benchmark started are ended. This module imports nothing: its servers are modules of this folder.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console


def run(console: Console, *, quick: bool, seed: int = 0) -> list[str]:
    """Run all scenarios, with `quick` two small ones. Return what must be zero and is not."""
    from benchmarks.night.run import run_scenarios

    return run_scenarios(console, quick=quick, seed=seed)
