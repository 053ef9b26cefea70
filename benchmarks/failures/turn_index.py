"""Advantages by turn index, as MT-GRPO has them (verl#7244), against orl's leave-one-out return-to-go.

A walk of at most six turns: a step pays a little, to stop pays once and ends it. A step is right at every turn. The
policy is a table of two logits for each turn, so its exact value is known, and no sampling noise hides a bias.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from statistics import fmean

import torch
from orl_core.reward import turn_advantages

from benchmarks.failures.plan import Plan
from benchmarks.failures.plot import Plot

TURNS, STEP, STOP = 6, 0.3, 0.6  # the last turn stops by itself
BEST = (TURNS - 1) * STEP + STOP
GROUP, GROUPS, UPDATES, RATE = 8, 8, 120, 0.05
ARMS = ("by turn index", "leave-one-out return-to-go")


def by_turn_index(rewards: Sequence[Sequence[float]]) -> list[list[float]]:
    """Return the sum, from each turn on, of the rewards minus the group's mean at the same turn index."""
    means = [fmean(one[turn] for one in rewards if turn < len(one)) for turn in range(max(map(len, rewards)))]
    centered = [[reward - means[turn] for turn, reward in enumerate(one)] for one in rewards]
    return [[math.fsum(one[turn:]) for turn in range(len(one))] for one in centered]


def return_to_go(rewards: Sequence[Sequence[float]]) -> list[list[float]]:
    """Return orl's advantages of the turns of one group."""
    returns = [[math.fsum(one[turn:]) for turn in range(len(one))] for one in rewards]
    return turn_advantages(returns, [0] * len(returns), [True] * len(returns), center=True, scale=False)


def expected(policy: torch.Tensor) -> float:
    """Return the exact expected reward of the policy."""
    stepping = policy.softmax(-1)[:, 0].tolist()
    value = STOP
    for chance in reversed(stepping):
        value = chance * (STEP + value) + (1 - chance) * STOP
    return value


def compare(seed: int, plan: Plan) -> dict[str, list[float]]:
    """Return for each arm the exact expected reward before each step and after the last one."""
    curves: dict[str, list[float]] = {}
    for arm in ARMS:
        rng = random.Random(seed)
        policy = torch.zeros(TURNS - 1, 2, requires_grad=True)
        optimizer = torch.optim.Adam([policy], lr=RATE)
        curve = [expected(policy.detach())]
        for _ in range(UPDATES if plan.faulty > 1 else 2):
            loss = torch.zeros(())
            logprobs, chances = policy.log_softmax(-1), policy.detach().softmax(-1)[:, 0].tolist()
            for _ in range(GROUPS):
                walks = [_walk(chances, rng) for _ in range(GROUP)]
                rewards = [[STOP if action else STEP for action in walk] for walk in walks]
                found = by_turn_index(rewards) if arm == ARMS[0] else return_to_go(rewards)
                for walk, advantages in zip(walks, found, strict=True):
                    for turn, (action, advantage) in enumerate(zip(walk, advantages, strict=True)):
                        if turn < TURNS - 1:  # the last turn chooses nothing
                            loss = loss - advantage * logprobs[turn, action]
            (loss / (GROUPS * GROUP)).backward()
            optimizer.step()
            optimizer.zero_grad()
            curve.append(expected(policy.detach()))
        curves[arm] = curve
    return curves


def _walk(chances: Sequence[float], rng: random.Random) -> list[int]:
    """Return the actions of one walk: 0 steps, 1 stops."""
    walk: list[int] = []
    for chance in chances:
        walk.append(int(rng.random() >= chance))
        if walk[-1]:
            return walk
    return [*walk, 1]


def plot(_: Plan) -> Plot:
    """Return the words of the plot."""
    return Plot(
        title="A walk that should not stop: advantages by turn index, or return-to-go",
        value="expected reward (exact)",
        levels={BEST: "always on", STOP: "stop at once"},
    )
