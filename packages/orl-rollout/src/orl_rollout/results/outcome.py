"""An outcome: a trajectory with its reward and its data. It knows no trainer.

The user's own reward function is called here and nowhere else. Here an outcome is cleared of secrets (law L6): what
writes, uploads or shows it later need not do so.
"""

from __future__ import annotations

import math

from msgspec import Struct, structs
from orl_core.config import EnvironmentConfig
from orl_core.datum import Datum, to_data
from orl_core.errors import OrlError, boundary
from orl_core.reward import reaches, reduce_reward
from orl_core.trajectory import StopReason, Trajectory

from orl_rollout.edge.secrets import Scrubber
from orl_rollout.results.reward_function import RewardFunction

LONGEST_ERROR = 2_000  # characters of a trajectory's error
UNJUDGED = frozenset({StopReason.ERROR, StopReason.ABORTED})  # no reward function is asked, and no metric counts it


class Outcome(Struct, frozen=True, kw_only=True):
    """The result of one rollout. `success` says whether the reward reached the environment's `success_reward`.

    `datums` is empty if the engine never returned an id, or if the text echoes a secret (see `Scrubber.cleared`).
    `replayed` tells that an attempt before this one was lost with its connection.
    `unrewarded` tells that the environment ended the episode and paid nothing: the reward is the sum of nothing.
    """

    trajectory: Trajectory
    reward: float
    success: bool
    datums: tuple[Datum, ...]
    replayed: bool = False
    unrewarded: bool = False

    @property
    def trains(self) -> bool:
        """Return whether any of its ids trains."""
        return any(datum.trainable and any(datum.loss_mask) for datum in self.datums)


def outcome_of(
    trajectory: Trajectory,
    config: EnvironmentConfig,
    scrubber: Scrubber,
    reward: RewardFunction | None = None,
) -> Outcome:
    """Judge and convert `trajectory`. One that ended in ERROR has reward 0.0 and is never a success.

    `reward` is the user's function; see `RewardFunction`. Total: if it raises, or does not return a finite number, the
    trajectory ends in ERROR and does not train. It is not asked about a trajectory that ended in ERROR or ABORTED.

    A trajectory that echoes a secret of `scrubber` is scrubbed, without ids and data, so that nobody can pass it on.
    """
    if reward is None or trajectory.stop_reason in UNJUDGED:
        outcome = _outcome(trajectory, reduce_reward(trajectory, config), config, scrubber)
        return structs.replace(outcome, unrewarded=reward is None and _is_unrewarded(trajectory))
    try:
        with boundary(OrlError, f"the reward function `{reward.name}`"):
            return _outcome(trajectory, reward.reward_of(trajectory, config), config, scrubber)
    except OrlError as fault:
        failed = structs.replace(trajectory, stop_reason=StopReason.ERROR, stop_detail=None, error=str(fault))
        return _outcome(failed, 0.0, config, scrubber)


def _is_unrewarded(trajectory: Trajectory) -> bool:
    """Tell whether the environment ended the episode without a finite reward in any result."""
    return trajectory.stop_reason is StopReason.FINISHED and not any(map(math.isfinite, trajectory.rewards))


def _outcome(trajectory: Trajectory, reward: float, config: EnvironmentConfig, scrubber: Scrubber) -> Outcome:
    failed = trajectory.stop_reason is StopReason.ERROR
    reward = 0.0 if failed else reward
    success = not failed and reaches(reward, config.success_reward)
    trajectory = scrubber.cleared(trajectory)
    if failed:  # cut after it was scrubbed: nobody finds a part of a secret
        error = " ".join(trajectory.error[: 2 * LONGEST_ERROR].split())[:LONGEST_ERROR]
        trajectory = structs.replace(trajectory, error=error)
    data = () if trajectory.contains_secret else to_data(trajectory, reward=reward)
    return Outcome(trajectory=trajectory, reward=reward, success=success, datums=data)
