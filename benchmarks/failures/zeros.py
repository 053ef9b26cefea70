"""Failures counted as reward 0 (NeMo Gym#2552) against failures left out, after steps without a fault.

A proxy answers 30 % of the environment's calls with status 500, and no rollout is played again. So a rollout of five
calls survives with probability 0.17, and one of a single call with 0.7. Both arms begin with the same weights, which
have learnt some steps without faults. The arms differ in two things: the reward of a failed rollout, and whether its
sampled ids train.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from statistics import fmean

import torch
from msgspec import Struct
from orl_core import EnvironmentConfig, RunConfig, Task, reduce_reward, to_data
from orl_rollout import OpenRewardClient
from orl_testing.proxy import Mishap, MishapKind, Proxy

from benchmarks.failures.learner import Learner, advantages_of, row_of, tasks_of
from benchmarks.failures.plan import Plan
from benchmarks.failures.plot import Plot
from benchmarks.guess_or_take import SURE
from examples.loop import LIMITS

GAME = "failures/GuessOrTake"
FAULTS, ALL = 0.3, 464
ARMS = ("counted as reward 0", "left out")


def config_of(url: str) -> RunConfig:
    return RunConfig(environments={GAME: EnvironmentConfig(base_url=url, nonterminal_reward=-1.0)})


class Course(Struct, frozen=True, kw_only=True):
    """A run of one seed: the server, its tasks, and the sizes."""

    url: str
    seed: int
    plan: Plan
    tasks: Sequence[Task]
    held_out: Sequence[Task]

    async def evaluate(self, learner: Learner, step: int) -> float:
        """Return the mean reward on held-out tasks, without faults."""
        config = config_of(self.url)
        async with OpenRewardClient(config) as client:
            played = await learner.play(self.held_out, client, 1, f"eval/{step}")
        return fmean(reduce_reward(one, config.environments[GAME]) for one in played)

    async def step(self, learner: Learner, step: int, *, faults: bool, zeros: bool) -> None:
        """Play and train once; `zeros` counts a failed rollout as reward 0 and trains it."""
        plan = self.plan
        chosen = [self.tasks[(step * plan.tasks + index) % len(self.tasks)] for index in range(plan.tasks)]
        async with Proxy(self.url, self._mishaps(step) if faults else ()) as proxy:
            config = config_of(proxy.url)
            async with OpenRewardClient(config) as client:
                played = await learner.play(chosen, client, plan.group, f"train/{step}")
        rewards = [reduce_reward(one, config.environments[GAME]) if one.trainable else 0.0 for one in played]
        trains = [one.trainable or zeros for one in played]
        rows = [
            row_of(datum, advantage, datum.sampled if zeros else datum.loss_mask)
            for one, advantage in zip(played, advantages_of(rewards, trains, plan.group), strict=True)
            for datum in to_data(one, reward=0.0)
            if advantage
        ]
        if rows:
            learner.update(rows)

    def _mishaps(self, step: int) -> list[Mishap]:
        """Return the faults of a step: the same calls by number in both arms."""
        rng = random.Random(f"{self.seed}/{step}")
        calls = self.plan.tasks * self.plan.group * LIMITS.max_turns
        hit = [at for at in range(calls) if rng.random() < FAULTS]
        return [Mishap(kind=MishapKind.STATUS, path="/call", at=at, status=500) for at in hit]


async def compare(url: str, seed: int, plan: Plan) -> dict[str, list[float]]:
    """Return for each arm the mean reward on held-out tasks: at the start, and after each `plan.every` steps."""
    torch.manual_seed(seed)
    tasks = await tasks_of(config_of(url), ALL)
    random.Random(seed).shuffle(tasks)
    course = Course(url=url, seed=seed, plan=plan, tasks=tasks[plan.held_out :], held_out=tasks[: plan.held_out])
    learner = Learner.fresh()
    before = [await course.evaluate(learner, 0)]
    for step in range(plan.clean):
        await course.step(learner, step, faults=False, zeros=False)
        if (step + 1) % plan.every == 0:
            before.append(await course.evaluate(learner, step + 1))
    curves: dict[str, list[float]] = {}
    for arm in ARMS:
        torch.manual_seed(seed)
        own, curve = learner.fork(), list(before)
        for step in range(plan.clean, plan.clean + plan.faulty):
            await course.step(own, step, faults=True, zeros=arm == ARMS[0])
            if (step + 1) % plan.every == 0:
                curve.append(await course.evaluate(own, step + 1))
        curves[arm] = curve
    return curves


def plot(plan: Plan) -> Plot:
    """Return the words of the plot."""
    return Plot(
        title="30 % of calls fail: failures counted as 0, or left out",
        value="mean reward, held-out tasks",
        every=plan.every,
        limits=(0.4, 0.9),
        marks={plan.clean: "faults begin"},
        levels={SURE: "one sure call"},
    )
