"""`python -m benchmarks.night [NAME ...] [--seed N] [--quick] [--long]`: scenarios by name; exit code 1 on a fault."""

from __future__ import annotations

import argparse
import sys

from rich.console import Console

from benchmarks.night.run import LANES, run_scenarios


def main() -> int:
    names = [name for lane in LANES.values() for name, _ in lane]
    parser = argparse.ArgumentParser(prog="python -m benchmarks.night")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"scenarios (default: all): {', '.join(names)}")
    parser.add_argument("--seed", type=int, default=0, help="of tasks and of the moments of accidents")
    parser.add_argument("--quick", action="store_true", help="small sizes")
    parser.add_argument("--long", action="store_true", help="add an outage of 300 s")
    chosen = parser.parse_args()
    if unknown := sorted(set(chosen.names) - set(names)):
        parser.error(f"no scenario {', '.join(unknown)}; there are {', '.join(names)}")
    console = Console(width=160)
    complaints = run_scenarios(console, quick=chosen.quick, seed=chosen.seed, long=chosen.long, only=chosen.names)
    for complaint in complaints:
        console.print(complaint, style="red", markup=False)
    return bool(complaints)


if __name__ == "__main__":
    sys.exit(main())
