"""Rows of the cookbook's Tinker recipe against orl's: targets that are not shifted, and logprobs on the wrong ids.

T1 gives each place its own id as the target, so the model learns to name the id that it reads. T2 puts logprobs and
advantages on the last N ids of the row, N being the number of sampled ids, so part of them falls on results of tools.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from statistics import fmean

import torch
from orl_core import Datum, EnvironmentConfig, RunConfig, reduce_reward, to_data
from orl_rollout import OpenRewardClient

from benchmarks.failures.learner import Learner, Row, advantages_of, row_of, tasks_of
from benchmarks.failures.plan import Plan
from benchmarks.failures.plot import Plot
from examples.loop import GAME


def unshifted(datum: Datum, advantage: float) -> Row:
    """Return the row of T1."""
    ids = (*datum.prompt, *datum.response)
    before = [0.0] * len(datum.prompt)
    advantages = [advantage * one for one in datum.loss_mask]
    return Row(ids=ids, targets=ids, logprobs=[*before, *datum.logprobs], advantages=[*before, *advantages])


def last_ids(datum: Datum, advantage: float) -> Row:
    """Return the row of T2."""
    ids = (*datum.prompt, *datum.response)
    logprobs = [value for value, one in zip(datum.logprobs, datum.sampled, strict=True) if one]
    before = [0.0] * (len(ids) - 1 - len(logprobs))
    return Row(
        ids=ids[:-1],
        targets=ids[1:],
        logprobs=[*before, *logprobs],
        advantages=[*before, *[advantage] * len(logprobs)],
    )


ARMS: dict[str, Callable[[Datum, float], Row]] = {
    "targets not shifted (T1)": unshifted,
    "logprobs on the last ids (T2)": last_ids,
    "orl's rows": lambda datum, advantage: row_of(datum, advantage, datum.loss_mask),
}


async def compare(url: str, seed: int, plan: Plan) -> dict[str, list[float]]:
    """Return for each arm the mean reward of the rollouts of each step."""
    config = RunConfig(environments={GAME: EnvironmentConfig(base_url=url, nonterminal_reward=-1.0)})
    tasks = await tasks_of(config, 464)
    random.Random(seed).shuffle(tasks)
    curves: dict[str, list[float]] = {}
    for arm, row in ARMS.items():
        torch.manual_seed(seed)
        learner, curve = Learner.fresh(), list[float]()
        async with OpenRewardClient(config) as client:
            for step in range(plan.clean + 3):
                chosen = tasks[step * plan.tasks : (step + 1) * plan.tasks]
                played = await learner.play(chosen, client, plan.group, f"{step}")
                rewards = [reduce_reward(one, config.environments[GAME]) for one in played]
                curve.append(fmean(rewards))
                found = advantages_of(rewards, [one.trainable for one in played], plan.group)
                rows = [
                    row(datum, advantage)
                    for one, advantage in zip(played, found, strict=True)
                    for datum in to_data(one, reward=0.0)
                    if advantage
                ]
                if rows:
                    learner.update(rows)
        curves[arm] = curve
    return curves


def plot(_: Plan) -> Plot:
    """Return the words of the plot."""
    return Plot(title="Rows of the Tinker recipe, and orl's", value="mean reward of a step", start=1)
