"""`python -m benchmarks.throughput --url URL --model FOLDER`: our rollouts against SGLang's own load generator.

Tokens per second of three clients (`throughput_clients`) that play the same mix against one SGLang server, measured in
interleaved rounds with an empty prefix cache, and how much of the prompts came from that cache. It is no part of
`just bench`, because it needs a GPU: FOLDER is what `benchmarks.throughput_model` makes, served with

    python -m sglang.launch_server --model-path FOLDER --load-format dummy --dtype bfloat16 --enable-cache-report
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table
from transformers import AutoTokenizer

from benchmarks.servers import many_files
from benchmarks.throughput_clients import Deck, Mix, Played, bare, flush, ours, theirs

GENERATOR = (sys.executable, "-m", "sglang.bench_serving")


def play(url: str, deck: Deck, model: Path, rounds: int, generator: Sequence[str]) -> dict[str, list[Played]]:
    """The runs of each client, round by round; the first of ours, which compiles kernels, is not among them."""
    clients = {
        "orl": lambda: asyncio.run(ours(url, deck)),
        "bare client": lambda: asyncio.run(bare(url, deck)),
        "sglang.bench_serving": lambda: theirs(url, deck, model, generator),
    }
    runs: dict[str, list[Played]] = {name: [] for name in clients}
    clients["orl"]()
    for _ in range(rounds):
        for name, client in clients.items():
            asyncio.run(flush(url))
            runs[name].append(client())
    return runs


def report(mix: Mix, runs: dict[str, list[Played]]) -> dict[str, Any]:
    """Figures of one mix for JSON: all runs, and the medians of each client."""
    medians = {}
    for name, played in runs.items():
        whole = [run for run in played if run.seconds]
        shares = [run.cached / run.prompts for run in whole if run.cached is not None]
        medians[name] = {
            "tokens_per_second": statistics.median([run.generated / run.seconds for run in whole] or [0.0]),
            "cached_share": statistics.median(shares) if shares else None,
        }
    ours_rate = medians["orl"]["tokens_per_second"]
    ratios = {
        name: ours_rate / medians[name]["tokens_per_second"] if medians[name]["tokens_per_second"] else None
        for name in runs
    }
    return {
        "mix": msgspec.to_builtins(mix),
        "context": mix.context,
        "known_share": mix.known / mix.prompts,
        "medians": medians,
        "orl_over": ratios,
        "runs": msgspec.to_builtins(runs),
    }


def table(results: Sequence[dict[str, Any]]) -> Table:
    """The medians."""
    shown = Table(
        "rollouts at once", "client", "generated ids a second", "of orl's", "cached ids of prompt ids", "at most"
    )
    for result in results:
        for name, medians in result["medians"].items():
            over = result["orl_over"][name]
            shown.add_row(
                f"{result['mix']['rollouts']:,}",
                name,
                f"{medians['tokens_per_second']:,.0f}",
                f"{1 / over:.3f}" if over else "",
                "" if medians["cached_share"] is None else f"{medians['cached_share']:.4f}",
                f"{result['known_share']:.4f}",
            )
    return shown


def main(arguments: Sequence[str] | None = None, generator: Sequence[str] = GENERATOR) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", required=True, help="the server, such as http://127.0.0.1:30000")
    parser.add_argument("--model", type=Path, required=True, help="the folder that it serves")
    parser.add_argument("--rollouts", type=int, nargs="+", default=[64, 256], help="how many at once")
    parser.add_argument("--turns", type=int, default=8)
    parser.add_argument("--action", type=int, default=128, help="ids of an answer")
    parser.add_argument("--new", type=int, default=300, help="new ids of a later prompt")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--output", type=Path, help="where to write JSON")
    chosen = parser.parse_args(arguments)
    many_files()
    console = Console(width=120)
    results: list[dict[str, Any]] = []
    faults: list[str] = []
    for rollouts in chosen.rollouts:
        mix = Mix(rollouts=rollouts, turns=chosen.turns, action=chosen.action, new=chosen.new)
        deck = Deck(AutoTokenizer.from_pretrained(str(chosen.model), trust_remote_code=False), mix)
        runs = play(chosen.url, deck, chosen.model, chosen.rounds, generator)
        faults += [
            f"{rollouts} at once, {name}: {fault}" for name in runs for run in runs[name] for fault in run.faults
        ]
        results.append(report(deck.mix, runs))
        if chosen.output:
            chosen.output.write_bytes(msgspec.json.format(msgspec.json.encode(results)))
        mix = deck.mix
        console.print(
            f"{rollouts:,} at once: a prompt of {mix.prompt:,} ids, {mix.turns} answers of {mix.action}, {mix.new} new "
            f"ids between them, {mix.context:,} in the end; medians of {chosen.rounds} rounds"
        )
        console.print(table(results[-1:]))
    for fault in faults:
        console.print(fault, style="red", markup=False)
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main())
