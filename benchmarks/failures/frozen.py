"""An engine that never gets the trained weights (verl#7495), with and without orl's check.

It is the run of `just bench frozen-weights`, at one learning rate and several seeds. Nothing ends the runs here. The
check sees the same differences of logprobs, and names the step at which it would end the run.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import torch
from orl_rollout.run_folder.judges import NOTICEABLE, fault_in

from benchmarks.failures.plan import Plan
from benchmarks.failures.plot import Plot
from benchmarks.frozen_weights import MOST, differences

RATE = 4e-4
ARMS = ("engine frozen", "engine updated")


def compare(checkpoint: Path, url: str, seed: int, plan: Plan) -> dict[str, list[float]]:
    """Return for each arm the difference of logprobs before each update; nothing ends the runs."""
    curves: dict[str, list[float]] = {}
    for arm in ARMS:
        torch.manual_seed(seed)
        frozen = arm == ARMS[0]
        most = plan.clean + plan.faulty + 2 if frozen else plan.clean
        curves[arm], _ = asyncio.run(differences(checkpoint, url, RATE, frozen=frozen, most=most, checked=False))
    return curves


def end(curve: list[float]) -> int | None:
    """Return the step at which orl's check ends the run, if it does."""
    return next((step for step in range(1, len(curve) + 1) if fault_in(curve[:step], MOST)), None)


def plot(_: Plan) -> Plot:
    """Return the words of the plot."""
    return Plot(
        title="The engine never gets the trained weights",
        value="difference of logprobs",
        start=1,
        log=True,
        levels={NOTICEABLE: "noticeable", MOST: "trainer.max_logprob_difference"},
    )
