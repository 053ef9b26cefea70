"""An outcome: a trajectory with its reward and its data, and what a batch of them says in numbers.

Every trainer and command reports the same metrics, so that a run reads alike everywhere. Pure; knows no trainer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import fmean

from msgspec import Struct
from orl_core.config import EnvironmentConfig
from orl_core.datum import Datum, to_data
from orl_core.reward import reduce_reward
from orl_core.trajectory import StopReason, Trajectory


class Outcome(Struct, frozen=True, kw_only=True):
    """What came of one rollout. `success` says whether the reward reached the environment's `success_reward`.

    `data` is empty where the engine never returned an id.
    """

    trajectory: Trajectory
    reward: float
    success: bool
    data: tuple[Datum, ...]


def outcome_of(trajectory: Trajectory, config: EnvironmentConfig) -> Outcome:
    """Reduce and convert `trajectory`. One that ended in ERROR has reward 0.0 and is never a success."""
    failed = trajectory.stop_reason is StopReason.ERROR
    reward = 0.0 if failed else reduce_reward(trajectory, config)
    success = not failed and reward >= config.success_reward
    return Outcome(trajectory=trajectory, reward=reward, success=success, data=to_data(trajectory, reward=reward))


def metrics_of(outcomes: Sequence[Outcome]) -> dict[str, float]:
    """Metrics of a batch, per environment (`GeneralReasoning/WhoDunIt/reward`) and, of several, together (`all/...`).

    Rates are shares of rollouts or calls in [0, 1]; `reward`, `success` and `turns` leave out rollouts in ERROR.
    """
    names = sorted({outcome.trajectory.job.task.env_name for outcome in outcomes})
    metrics: dict[str, float] = {}
    for name in names:
        members = [outcome for outcome in outcomes if outcome.trajectory.job.task.env_name == name]
        metrics.update({f"{name}/{key}": value for key, value in _metrics(members).items()})
    if len(names) > 1:
        metrics.update({f"all/{key}": value for key, value in _metrics(outcomes).items()})
    return metrics


def _metrics(outcomes: Sequence[Outcome]) -> dict[str, float]:
    trajectories = [outcome.trajectory for outcome in outcomes]
    sound = [outcome for outcome in outcomes if outcome.trajectory.stop_reason is not StopReason.ERROR]
    turns = [turn for trajectory in trajectories for turn in trajectory.turns]
    results = [result for turn in turns for result in turn.results]
    generations = [generation for turn in turns for generation in turn.generations]
    shown = sum(len(turn.observation) for turn in turns)
    metrics = {
        "rollouts": float(len(outcomes)),
        "reward": _mean(outcome.reward for outcome in sound),
        "success": _mean(float(outcome.success) for outcome in sound),
        "turns": _mean(float(len(outcome.trajectory.turns)) for outcome in sound),
        "action_tokens": _mean(float(sum(len(turn.action_ids) for turn in t.turns)) for t in trajectories),
        "valid_calls": _mean(float(bool(turn.results) and not any(r.failure for r in turn.results)) for turn in turns),
        "calls": float(len(results)),
        "observed_tokens": float(shown),
        "cached_tokens": float(sum(generation.cached_tokens for generation in generations)),
        "aborted_tokens": float(
            sum(len(turn.action_ids) for t in trajectories if t.stop_reason is StopReason.ABORTED for turn in t.turns)
        ),
        "generation_seconds": sum(generation.seconds for generation in generations),
        "environment_seconds": sum(result.seconds for result in results),
    }
    for reason in StopReason:
        metrics[f"stop/{reason.value}"] = _mean(float(t.stop_reason is reason) for t in trajectories)
    return metrics


def _mean(values: Iterable[float]) -> float:
    members = list(values)
    return fmean(members) if members else 0.0
