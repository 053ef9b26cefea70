"""Four published failures of RL trainers, reproduced, and avoided at equal seeds: docs/evidence/failures.md.

`just failures` runs all of them, `just failures zeros` one. Values go to runs/failures/NAME.json, a plot next to each.
Nothing here is a claim about other trainers' present versions: each arm does what the published report describes.
`each-guess` shows orl's estimator alone, on a model.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from statistics import fmean

import torch
from orl_core import EnvironmentConfig, RunConfig, TrainerConfig
from orl_launcher.made_models import cached_model
from orl_playground import server
from rich.console import Console

from benchmarks.failures import each_guess, frozen, turn_index, wrong_ids, zeros
from benchmarks.failures.plan import EACH_GUESS, QUICK, ZEROS, Plan
from benchmarks.failures.plot import Plot, draw
from benchmarks.servers import served
from examples.loop import GAME

Curves = dict[str, list[float]]  # by arm
OUTPUT = Path("runs/failures")
START = 300.0  # seconds: a machine that others use starts a server slowly


def _zeros(seed: int, plan: Plan) -> Curves:
    with served("guess_or_take") as url:
        return asyncio.run(zeros.compare(url, seed, plan))


def _wrong_ids(seed: int, plan: Plan) -> Curves:
    with server.serving(["guessnumber"], start_seconds=START) as url:
        return asyncio.run(wrong_ids.compare(url, seed, plan))


def _frozen(seed: int, plan: Plan) -> Curves:
    with server.serving(["guessnumber"], start_seconds=START) as url:
        return frozen.compare(_checkpoint(), url, seed, plan)


def _each_guess(seed: int, plan: Plan) -> Curves:
    with served("pays_each_guess") as url:
        return each_guess.compare(_checkpoint(), url, seed, plan)


def _checkpoint() -> Path:
    config = RunConfig(environments={GAME: EnvironmentConfig()}, trainer=TrainerConfig(model=GAME))
    return cached_model(config, Path("runs"))


COMPARISONS: dict[str, tuple[Callable[[int, Plan], Curves], Callable[[Plan], Plot], Plan]] = {
    "zeros": (_zeros, zeros.plot, ZEROS),
    "turn-index": (turn_index.compare, turn_index.plot, Plan()),
    "wrong-ids": (_wrong_ids, wrong_ids.plot, Plan()),
    "frozen": (_frozen, frozen.plot, Plan()),
    "each-guess": (_each_guess, each_guess.plot, EACH_GUESS),
}


def run(console: Console, *, quick: bool, names: tuple[str, ...] = (), output: Path = OUTPUT) -> list[str]:
    """Run the comparisons and print their curves; values and plot are written after each seed. Nothing is judged."""
    torch.set_num_threads(1)
    output.mkdir(parents=True, exist_ok=True)
    for name in names or COMPARISONS:
        compare, plot, full = COMPARISONS[name]
        plan = QUICK if quick else full
        drawn, by_seed = plot(plan), dict[int, Curves]()
        console.print(drawn.title)
        for seed in plan.seeds:
            by_seed[seed] = compare(seed, plan)
            (output / f"{name}.json").write_text(json.dumps(by_seed), encoding="utf-8")
            draw(drawn, by_seed, output / f"failure-{name}.svg")
            for arm, curve in by_seed[seed].items():
                shown = " ".join(f"{value:.2g}" for value in curve[:: max(1, len(curve) // 12)])
                console.print(f"seed {seed}, {arm}: {shown}; mean of the last three {fmean(curve[-3:]):.3g}")
                if name == "frozen":
                    console.print(f"seed {seed}, {arm}: the check ends it at step {frozen.end(curve)}")
    return []
