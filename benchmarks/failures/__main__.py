"""`python -m benchmarks.failures [NAME ...] [--quick] [--output FOLDER]`: run the comparisons, all or by name."""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.console import Console

from benchmarks.failures import COMPARISONS, OUTPUT, run

if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="just failures")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"{', '.join(COMPARISONS)}; all by default")
    parser.add_argument("--quick", action="store_true", help="the smallest sizes: shows that it runs, and no more")
    parser.add_argument("--output", type=Path, default=OUTPUT, help="folder of values and plots")
    chosen = parser.parse_args()
    if unknown := sorted(set(chosen.names) - set(COMPARISONS)):
        parser.error(f"no comparison {', '.join(unknown)}; there are {', '.join(COMPARISONS)}")
    run(Console(), quick=chosen.quick, names=tuple(chosen.names), output=chosen.output)
