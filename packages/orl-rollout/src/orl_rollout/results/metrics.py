"""Metrics of a batch of rollouts: one RolloutStats for each, and their sums and means by name.

Every trainer and command reports these. A RolloutStats holds no ids and no text, so that it travels with a trainer's
sample. The module knows no trainer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from math import comb, isfinite, sqrt
from statistics import fmean

from msgspec import Struct
from orl_core import FailureKind, StopDetail, StopReason

from orl_rollout.results.outcome import UNJUDGED, Outcome

SMALLEST_DIFFERENCE = 1e-6  # between rewards that counts as one
Z = 1.959964  # quantile of the normal distribution for 95 %


class RolloutStats(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One rollout in numbers. Times are seconds, tokens are ids; `valid_turns` are those whose calls all were valid.

    `failures` counts the failed calls by kind, `rows` its data, `counts` those of the trajectory. `agent` tells whether
    an agent of the user's played it, `replayed` whether it was played again after its connection broke, `unrewarded`
    that it finished and no result carried a reward. `rewards` are the results that carried one, a finite number.
    """

    environment: str
    split: str
    task: str
    stop_reason: StopReason
    stop_detail: StopDetail | None = None
    reward: float
    success: bool
    turns: int
    valid_turns: int
    calls: int
    action_tokens: int
    observed_tokens: int
    cached_tokens: int
    prompt_tokens: int
    generation_seconds: float
    environment_seconds: float
    failures: dict[str, int] = {}
    rows: int = 0
    trained_tokens: int = 0
    counts: dict[str, int] = {}
    agent: bool = False
    replayed: bool = False
    rewards: int = 0
    unrewarded: bool = False


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
        split=trajectory.job.task.split,
        task=trajectory.job.task.key,
        stop_reason=trajectory.stop_reason,
        stop_detail=trajectory.stop_detail,
        reward=outcome.reward,
        success=outcome.success,
        turns=len(trajectory.turns),
        valid_turns=sum(bool(turn.results) and not any(r.failure for r in turn.results) for turn in trajectory.turns),
        calls=len(results),
        action_tokens=sum(len(turn.action_ids) for turn in trajectory.turns),
        observed_tokens=sum(len(turn.observation) for turn in trajectory.turns),
        cached_tokens=0 if trajectory.contains_secret else sum(generation.cached_tokens for generation in generations),
        prompt_tokens=_prompt_tokens(outcome),
        generation_seconds=sum(generation.seconds for generation in generations),
        environment_seconds=sum(result.seconds for result in results),
        failures=dict(Counter(result.failure.value for result in results if result.failure is not None)),
        rows=len(outcome.datums),
        trained_tokens=sum(sum(datum.loss_mask) for datum in outcome.datums),
        counts=trajectory.counts,
        agent=any(turn.messages for turn in trajectory.turns),
        replayed=outcome.replayed,
        rewards=sum(map(isfinite, trajectory.rewards)),
        unrewarded=outcome.unrewarded,
    )


def _prompt_tokens(outcome: Outcome) -> int:
    """Count the ids of all prompts: the engine reads so many without a prefix cache."""
    after: list[int] = []  # ids that a turn leaves for those that continue it
    total = 0
    for turn, parent in zip(outcome.trajectory.turns, outcome.trajectory.parents, strict=True):
        shown = len(turn.observation) + (after[parent] if parent >= 0 else 0)
        for generation in turn.generations:
            total += shown
            shown += len(generation.token_ids)
        after.append(shown - sum(end - start for start, end in turn.stripped_spans))
    return total


def metrics_of(measures: Iterable[RolloutStats]) -> dict[str, float]:
    """Return metrics of a batch by environment (`GeneralReasoning/WhoDunIt/reward`), and of several as `all/...`.

    Rates are shares of rollouts, turns, calls or ids in [0, 1]; `reward`, `success`, `turns` and `tokens_per_turn`
    exclude rollouts in ERROR or ABORTED, and are absent if none remain. `judged` counts the rollouts that they are
    taken over, `unrewarded` those that finished without any reward, `rewards` the results that carried one.
    Where an agent played, or a rollout has several rows, `rows` and `trained_tokens` are means of a
    rollout, and `single_rows` is the share of those with one row.
    """
    batch = list(measures)
    return {
        f"{name}/{key}": value
        for name, members in _by_environment(batch).items()
        for key, value in _metrics(members).items()
    }


def training_metrics(measures: Iterable[RolloutStats], *, groups: bool = True) -> dict[str, float]:
    """Return the metrics of a training batch: those of `metrics_of`, and of its `groups` if their rewards are final."""
    batch = list(measures)
    return {**metrics_of(batch), **(_group_metrics(batch) if groups else {})}


def _group_metrics(batch: Sequence[RolloutStats]) -> dict[str, float]:
    """Return the groups of a training batch: their number, and the share of those whose rewards are all equal.

    A group is the rollouts of one task that train. Groups of one rollout do not count.
    """
    metrics: dict[str, float] = {}
    for name, members in _by_environment(batch).items():
        rewards: dict[str, list[float]] = {}
        for member in members:
            if member.stop_reason not in UNJUDGED and member.trained_tokens:
                rewards.setdefault(member.task, []).append(member.reward)
        groups = [group for group in rewards.values() if len(group) > 1]
        equal = sum(max(group) - min(group) <= SMALLEST_DIFFERENCE for group in groups)
        metrics[f"{name}/groups"] = float(len(groups))
        metrics[f"{name}/equal_groups"] = _share(equal, len(groups))
    return metrics


def evaluation_metrics(measures: Iterable[RolloutStats]) -> dict[str, float]:
    """Return the metrics of an evaluation: those of `metrics_of`, pass@k, and the number of `tasks` judged.

    Where an environment was evaluated on several splits, each has metrics too: `Organization/Environment/test/success`.
    """
    batch = list(measures)
    metrics: dict[str, float] = {}
    for name, members in (_by_environment(batch) | _sets(batch)).items():
        successes: dict[str, list[bool]] = {}
        for member in members:
            if member.stop_reason not in UNJUDGED:
                successes.setdefault(member.task, []).append(member.success)
        passes = {f"pass@{k}": rate for k, rate in mean_pass_at_k(successes).items()}
        numbers = {**_metrics(members), "tasks": float(len(successes)), **passes}
        metrics.update({f"{name}/{key}": value for key, value in numbers.items()})
    return metrics


def _by_environment(batch: Sequence[RolloutStats]) -> dict[str, Sequence[RolloutStats]]:
    """Return the rollouts by environment, and as `all` if there are several."""
    names = sorted({member.environment for member in batch})
    members = {name: [member for member in batch if member.environment == name] for name in names}
    return {**members, **({"all": batch} if len(names) > 1 else {})}


def _sets(batch: Sequence[RolloutStats]) -> dict[str, list[RolloutStats]]:
    """Return the rollouts of each split of the environments that have several."""
    sets: dict[str, dict[str, list[RolloutStats]]] = {}
    for member in batch:
        sets.setdefault(member.environment, {}).setdefault(member.split, []).append(member)
    return {
        f"{environment}/{split}": splits[split]
        for environment, splits in sorted(sets.items())
        if len(splits) > 1
        for split in sorted(splits)
    }


def _metrics(batch: Sequence[RolloutStats]) -> dict[str, float]:
    sound = [member for member in batch if member.stop_reason not in UNJUDGED]
    calls = sum(member.calls for member in batch)
    failures = sum((Counter(member.failures) for member in batch), Counter[str]())
    judged = {
        "reward": _mean(member.reward for member in sound),
        "success": _mean(float(member.success) for member in sound),
        "turns": _mean(float(member.turns) for member in sound),
        "tokens_per_turn": _share(sum(m.action_tokens for m in sound), sum(m.turns for m in sound)),
    }
    metrics = {
        "rollouts": float(len(batch)),
        "judged": float(len(sound)),
        "replayed": float(sum(member.replayed for member in batch)),
        "rewards": float(sum(member.rewards for member in batch)),
        "unrewarded": float(sum(member.unrewarded for member in batch)),
        **(judged if sound else {}),
        "action_tokens": _mean(float(member.action_tokens) for member in batch),
        "valid_calls": _share(sum(m.valid_turns for m in batch), sum(m.turns for m in batch)),
        "calls": float(calls),
        "failed_calls": _share(failures.total(), calls),
        **{f"failures/{kind.value}": _share(failures[kind], calls) for kind in FailureKind},
        "observed_tokens": float(sum(member.observed_tokens for member in batch)),
        "cached_tokens": float(sum(member.cached_tokens for member in batch)),
        "cache_hits": _share(sum(m.cached_tokens for m in batch), sum(m.prompt_tokens for m in batch)),
        "aborted_tokens": float(sum(m.action_tokens for m in batch if m.stop_reason is StopReason.ABORTED)),
        "generation_seconds": sum(member.generation_seconds for member in batch),
        "environment_seconds": sum(member.environment_seconds for member in batch),
    }
    for ending in (*StopReason, *StopDetail):
        metrics[f"stop/{ending.value}"] = _mean(float((m.stop_detail or m.stop_reason) is ending) for m in batch)
    return {**metrics, **_row_metrics(batch)}


def _row_metrics(batch: Sequence[RolloutStats]) -> dict[str, float]:
    """Return what is known of rows; nothing if no agent ran and each rollout made one row."""
    if not any(member.agent or member.rows > 1 for member in batch):
        return {}
    counts = sorted({name for member in batch for name in member.counts})
    return {
        "rows": _mean(float(member.rows) for member in batch),
        "single_rows": _mean(float(member.rows == 1) for member in batch),
        "trained_tokens": _mean(float(member.trained_tokens) for member in batch),
        **{f"agent/{name}": _mean(float(m.counts.get(name, 0)) for m in batch) for name in counts},
    }


def _mean(values: Iterable[float]) -> float:
    members = list(values)
    return fmean(members) if members else 0.0


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def pass_at_k(n: int, c: int, k: int) -> float:
    """Return pass@k of one task with `c` successes in `n` rollouts; 1 <= k <= n, 0 <= c <= n.

    It is the chance that at least one of k rollouts succeeds, estimated without bias: a random choice of k holds no
    success with the chance C(n-c, k) / C(n, k).
    """
    return 1.0 - comb(n - c, k) / comb(n, k)


def mean_pass_at_k(successes: Mapping[str, Sequence[bool]]) -> dict[int, float]:
    """Average pass@k over tasks, for k = 1, 2, 4, ... and the largest that every task has rollouts for.

    `successes` holds, by task, whether each of its rollouts succeeded; tasks without rollouts are left out.
    """
    tasks = [outcomes for outcomes in successes.values() if outcomes]
    if not tasks:
        return {}
    largest = min(map(len, tasks))
    ks = [*(2**n for n in range(largest.bit_length()) if 2**n < largest), largest]
    return {k: fmean(pass_at_k(len(task), sum(task), k) for task in tasks) for k in ks}


def wilson(rate: float, n: float) -> tuple[float, float]:
    """Return Wilson's 95 % interval of a rate in [0, 1] over `n` independent trials; (0, 1) if there is none."""
    if n <= 0:
        return 0.0, 1.0
    spread = Z * Z / n
    centre = (rate + spread / 2) / (1 + spread)
    half = sqrt(spread * rate * (1 - rate) + spread * spread / 4) / (1 + spread)
    return max(0.0, centre - half), min(1.0, centre + half)
