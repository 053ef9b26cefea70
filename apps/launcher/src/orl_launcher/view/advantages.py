"""Advantages of a group of rollouts, made again from the journal as trainers make them.

The journal holds rewards and no advantages: groups are compared after their rollouts are recorded. It does not know the
flags after `--` on a command line.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from orl_core.config import RunConfig, decode_config
from orl_core.datum import to_data
from orl_core.errors import ConfigError
from orl_core.estimators import Estimator, estimator_named
from orl_rollout.episodes.journal import Entry
from orl_rollout.results.outcome import Outcome
from orl_rollout.training.rows import advantages_of as advantages_of_rows
from orl_rollout.training.rows import members_of

from orl_launcher.trainers import find_trainer, installed

LARGEST = 64  # rollouts of a group that a page reads


def compared(config: dict[str, Any], size: int) -> tuple[RunConfig, Estimator] | None:
    """Return what makes the advantages of a group of `size` rollouts, if it is their rewards alone.

    None if the group is not whole, or too large for a page.
    """
    try:
        run = decode_config(config, "config.json")
        estimator = estimator_named(run.trainer.advantage_estimator or "grpo")
    except ConfigError:
        return None
    flags = str(run.trainer.flags)
    changed = estimator.whiten or run.group_reward.mode != "off" or "rewards" in flags or "grpo-std" in flags
    backend = str(run.trainer.backend)
    trainer = run.trainer.with_defaults(find_trainer(backend).defaults) if backend in installed() else run.trainer
    return None if changed or trainer.n_samples != size or size > LARGEST else (run, estimator)


def advantages_of(config: dict[str, Any], group: Sequence[Entry]) -> list[list[float]]:
    """Return the advantages of the actions of each rollout of `group`, all those of one task in one step.

    There are none if `compared` finds none.
    """
    size = len(group)
    if (rule := compared(config, size)) is None:
        return []
    run, estimator = rule
    outcomes = [
        Outcome(
            trajectory=entry.trajectory,
            reward=entry.reward,
            success=entry.success,
            datums=tuple(to_data(entry.trajectory, reward=entry.reward)),
        )
        for entry in group
    ]
    members = members_of(outcomes, size)
    gained = iter(advantages_of_rows(members, center=True, scale=estimator.scale, turns=run.turn_advantages))
    return [[gain for _ in outcome.datums for _, gain in next(gained)] for outcome in outcomes]
