"""Numbers of a batch of rollouts: one RolloutStats for each, and their sums and means by name.

Every trainer and command reports these, so that a run reads alike everywhere. A RolloutStats holds no ids and no text:
it travels with a trainer's sample to wherever that trainer logs, and `metrics_of` needs nothing else. It knows no
trainer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import fmean

from msgspec import Struct
from orl_core.trajectory import StopReason

from orl_rollout.results.outcome import Outcome


class RolloutStats(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One rollout in numbers. Times are seconds, tokens are ids; `valid_turns` are those whose calls all were valid."""

    environment: str
    stop_reason: StopReason
    reward: float
    success: bool
    turns: int
    valid_turns: int
    calls: int
    failed_calls: int
    action_tokens: int
    observed_tokens: int
    cached_tokens: int
    prompt_tokens: int
    generation_seconds: float
    environment_seconds: float


def stats_of(outcome: Outcome) -> RolloutStats:
    """Return the numbers of one outcome.

    `prompt_tokens` are those of all its requests, `cached_tokens` what was cached. A rollout that echoed a
    secret has no ids any more: it counts no tokens, cached ones neither.
    """
    trajectory = outcome.trajectory
    results = [result for turn in trajectory.turns for result in turn.results]
    generations = [generation for turn in trajectory.turns for generation in turn.generations]
    return RolloutStats(
        environment=trajectory.job.task.env_name,
        stop_reason=trajectory.stop_reason,
        reward=outcome.reward,
        success=outcome.success,
        turns=len(trajectory.turns),
        valid_turns=sum(bool(turn.results) and not any(r.failure for r in turn.results) for turn in trajectory.turns),
        calls=len(results),
        failed_calls=sum(result.failure is not None for result in results),
        action_tokens=sum(len(turn.action_ids) for turn in trajectory.turns),
        observed_tokens=sum(len(turn.observation) for turn in trajectory.turns),
        cached_tokens=0 if trajectory.contains_secret else sum(generation.cached_tokens for generation in generations),
        prompt_tokens=_prompt_tokens(outcome),
        generation_seconds=sum(generation.seconds for generation in generations),
        environment_seconds=sum(result.seconds for result in results),
    )


def _prompt_tokens(outcome: Outcome) -> int:
    """Count the ids of all prompts: the engine reads so many without a prefix cache."""
    shown = total = 0
    for turn in outcome.trajectory.turns:
        shown += len(turn.observation)
        for generation in turn.generations:
            total += shown
            shown += len(generation.token_ids)
        shown -= sum(end - start for start, end in turn.stripped_spans)
    return total


def metrics_of(measures: Iterable[RolloutStats]) -> dict[str, float]:
    """Return metrics of a batch by environment (`GeneralReasoning/WhoDunIt/reward`), and of several as `all/...`.

    Rates are shares of rollouts, turns, calls or ids in [0, 1]; `reward`, `success` and `turns` leave out rollouts in
    ERROR, and are missing where there are no others.
    """
    batch = list(measures)
    names = sorted({member.environment for member in batch})
    metrics: dict[str, float] = {}
    for name in names:
        members = [member for member in batch if member.environment == name]
        metrics.update({f"{name}/{key}": value for key, value in _metrics(members).items()})
    if len(names) > 1:
        metrics.update({f"all/{key}": value for key, value in _metrics(batch).items()})
    return metrics


def _metrics(batch: Sequence[RolloutStats]) -> dict[str, float]:
    sound = [member for member in batch if member.stop_reason is not StopReason.ERROR]
    calls = sum(member.calls for member in batch)
    judged = {
        "reward": _mean(member.reward for member in sound),
        "success": _mean(float(member.success) for member in sound),
        "turns": _mean(float(member.turns) for member in sound),
    }
    metrics = {
        "rollouts": float(len(batch)),
        **(judged if sound else {}),
        "action_tokens": _mean(float(member.action_tokens) for member in batch),
        "valid_calls": _share(sum(m.valid_turns for m in batch), sum(m.turns for m in batch)),
        "calls": float(calls),
        "failed_calls": _share(sum(member.failed_calls for member in batch), calls),
        "observed_tokens": float(sum(member.observed_tokens for member in batch)),
        "cached_tokens": float(sum(member.cached_tokens for member in batch)),
        "cache_hits": _share(sum(m.cached_tokens for m in batch), sum(m.prompt_tokens for m in batch)),
        "aborted_tokens": float(sum(m.action_tokens for m in batch if m.stop_reason is StopReason.ABORTED)),
        "generation_seconds": sum(member.generation_seconds for member in batch),
        "environment_seconds": sum(member.environment_seconds for member in batch),
    }
    for reason in StopReason:
        metrics[f"stop/{reason.value}"] = _mean(float(member.stop_reason is reason) for member in batch)
    return metrics


def _mean(values: Iterable[float]) -> float:
    members = list(values)
    return fmean(members) if members else 0.0


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
