"""`python -m benchmarks [NAME ...] [--quick]`: run benchmarks one after the other; exit code 1 if one complains."""

from __future__ import annotations

import argparse
import sys
from importlib import import_module

from rich.console import Console

BENCHMARKS = {
    "turns": "client CPU per turn and its slope in history, against a cookbook's loop",
    "short": "client CPU of 256 short episodes at once, against a bare loop over the SDK",
    "workers": "turns a second of rollouts in 1, 2 and 4 processes, on a host with cores for them",
    "engine-time": "the share of engine time lost to the loop at 64, 256 and 1,000 rollouts",
    "agents": "a turn of an agent at the gateway against the built-in loop's, and 256 episodes at once",
    "one-gpu": "engine, weight sync and update of a model on one GPU, against bare SGLang; small without a GPU",
    "peers": "verifiers, tinker-cookbook and TRL with pinned versions of their own: CPU, ids, restarts, a step",
    "night": "accidents of real runs, and sick runs that must not continue: what is lost, miscounted, ended, not ended",
    "import-time": "what importing orl and `orl --help` cost",
}


def main() -> int:
    names = "\n".join(f"  {name:14} {what}" for name, what in BENCHMARKS.items())
    parser = argparse.ArgumentParser(
        prog="just bench", epilog=f"benchmarks:\n{names}", formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="which ones; all by default")
    parser.add_argument("--quick", action="store_true", help="small sizes and few rounds: seconds instead of minutes")
    parser.add_argument("--seed", type=int, default=0, help="of the night's tasks and of the moments of its accidents")
    options = parser.parse_args()
    if unknown := sorted(set(options.names) - set(BENCHMARKS)):
        parser.error(f"no benchmark {', '.join(unknown)}; there are {', '.join(BENCHMARKS)}")
    console = Console()
    complaints: list[str] = []
    for name in options.names or BENCHMARKS:
        console.rule(f"{name}: {BENCHMARKS[name]}")
        benchmark = import_module(f"benchmarks.{name.replace('-', '_')}")
        more = {"seed": options.seed} if name == "night" else {}
        complaints += [f"{name}: {complaint}" for complaint in benchmark.run(console, quick=options.quick, **more)]
    for complaint in complaints:
        console.print(complaint, style="red", markup=False)
    return bool(complaints)


if __name__ == "__main__":
    sys.exit(main())
