"""The trainer's Sample: its task, the fields that train, those that its metrics read, its status, and its metadata.

It works on any object with the fields that the Samples of trainers share, and never imports a trainer. A sample that
does not train is well-formed all the same: a trainer looks at every sample of a batch. Fields that only one trainer has
are written by its adapter. What `post_process` needs of a rollout, when it sees whole groups, waits in the metadata.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, Self, cast

import msgspec
from orl_core import ConfigError, Datum, StopReason, Task, Trajectory
from orl_rollout import Outcome, stats_of
from orl_rollout.runtime.group_scores import candidate
from orl_rollout.tasks.file import metadata_in, task_in
from orl_rollout.training.rows import advantages_per_token, turns_of

STATS = "orl_measure"  # in a sample's metadata
TURNS = "orl_turns"  # in a sample's metadata: [number of the turn, index of its last id, reward paid before it]
OFFERED = "orl_conversation"  # in a sample's metadata: the conversation for the judge
SCORED = "orl_group_score"  # and its score: a number, or None if the group could not be scored

_STATUS = {
    StopReason.FINISHED: "COMPLETED",
    StopReason.MAX_TURNS: "TRUNCATED",
    StopReason.MAX_TOKENS: "TRUNCATED",
    StopReason.TIMEOUT: "TRUNCATED",
    StopReason.ABORTED: "ABORTED",
    StopReason.ERROR: "FAILED",
}

TextOf = Callable[[Sequence[int]], str]


def fill(sample: Any, outcome: Outcome, *, text_of: TextOf) -> None:
    """Write `outcome` into `sample`. If it does not train, it has mask, logprobs and reward all the same."""
    _write(sample, outcome.datums[0] if outcome.datums else None, outcome, text_of)
    _count(sample, outcome)


def split(sample: Any, outcome: Outcome, *, text_of: TextOf, evaluation: bool = False) -> list[Any]:
    """Write `outcome` into `sample` and copies of it, one for each datum, the first of them `sample` itself."""
    fill(sample, outcome, text_of=text_of)
    if evaluation:
        _write(sample, outcome.datums[-1] if outcome.datums else None, outcome, text_of)
        return [sample]
    sample.rollout_id = sample.index
    samples = [sample]
    for datum in outcome.datums[1:]:
        sibling = copy.copy(sample)
        sibling.metadata = dict(sample.metadata)
        store_conversation(sibling, None)
        _count(sibling, None)
        _write(sibling, datum, outcome, text_of)
        samples.append(sibling)
    return samples


def mark_failed(sample: Any) -> None:
    """Make `sample` one that failed before anything was played, and does not train."""
    _fill_tokens(sample, None, lambda _: "")
    _count(sample, None)
    if (metadata := metadata_of(sample)) is not None:  # of an earlier attempt
        metadata.pop(STATS, None)
        store_conversation(sample, None)
    sample.reward, sample.remove_sample, sample.status = 0.0, True, _status(sample, StopReason.ERROR)


def mark_aborted(sample: Any) -> None:
    """Make `sample`, which holds nothing to train, one that the trainer asks for again."""
    sample.status = _status(sample, StopReason.ABORTED)


def reset_sample(sample: Any) -> None:
    """Make `sample`, which failed, one that was never played."""
    sample.tokens, sample.response, sample.response_length, sample.weight_versions = [], "", 0, []
    sample.loss_mask = sample.reward = None
    for name in cast("dict[str, Any]", vars(sample)):  # per-token fields that trainers keep of the engine
        if name.startswith("rollout_") and name != "rollout_id":
            setattr(sample, name, None)
    sample.remove_sample, sample.status = False, cast("Any", type(sample)).Status.PENDING


def _write(sample: Any, datum: Datum | None, outcome: Outcome, text_of: TextOf) -> None:
    _fill_tokens(sample, datum, text_of)
    sample.reward = outcome.reward
    sample.remove_sample = not (datum and datum.trainable)
    sample.status = _status(sample, outcome.trajectory.stop_reason)


def _status(sample: Any, reason: StopReason) -> Any:
    return getattr(cast("Any", type(sample)).Status, _STATUS[reason])


def _fill_tokens(sample: Any, datum: Datum | None, text_of: TextOf) -> None:
    prompt, response = (datum.prompt, datum.response) if datum else ((0,), (0,))
    sample.tokens = [*prompt, *response]
    sample.response_length = len(response)
    sample.response = text_of(response) if datum else ""
    sample.loss_mask = list(datum.loss_mask) if datum else [0]
    sample.rollout_log_probs = list(datum.logprobs) if datum else [0.0]
    sample.weight_versions = list(datum.weight_versions) if datum else []


def _count(sample: Any, outcome: Outcome | None) -> None:
    """Write numbers that a trainer sums over samples: into one sample of a rollout, and none into the others."""
    sample.non_generation_time = 0.0
    cache, speculation = _anew(sample, "prefix_cache_info"), _anew(sample, "spec_info")
    if outcome is None:
        return
    numbers = stats_of(outcome)
    sample.metadata[STATS] = msgspec.to_builtins(numbers)
    sample.non_generation_time = numbers.environment_seconds
    if cache is not None:
        cache.add({"cached_tokens": numbers.cached_tokens, "prompt_tokens": numbers.prompt_tokens})
    if speculation is not None:
        for turn in outcome.trajectory.turns:
            for generation in turn.generations:
                speculation.add(generation.extras | {"completion_tokens": len(generation.token_ids)})


def _anew(sample: Any, name: str) -> Any:
    """Replace a counter of `sample` by an empty one and return it; None if its trainer has no such counter."""
    counter = getattr(sample, name, None)
    if counter is not None:
        counter = type(counter)()
        setattr(sample, name, counter)
    return counter


class TurnAdvantages(float):
    """The mean advantage of a row's tokens, for metrics; `turns` are each turn's last index and its advantage."""

    turns: tuple[tuple[int, float], ...]

    def __new__(cls, turns: Sequence[tuple[int, float]]) -> Self:
        """Make it of the turns in order."""
        self = super().__new__(cls, sum(gained for _, gained in turns) / len(turns))
        self.turns = tuple(turns)
        return self

    def __getnewargs__(self) -> tuple[tuple[tuple[int, float], ...]]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Return what a copy in another process is made of."""
        return (self.turns,)

    def per_token(self, length: int) -> list[float]:
        """Return the advantage of each of the `length` ids of the response."""
        return advantages_per_token(self.turns, length)


def store_turns(samples: Sequence[Any], datums: Sequence[Datum]) -> None:
    """Leave the turns of one rollout in the metadata of its samples, one for each datum; none if it failed."""
    for sample in samples:
        sample.metadata.pop(TURNS, None)
    for sample, turns in zip(samples, turns_of(datums), strict=False):
        sample.metadata[TURNS] = turns


def store_conversation(sample: Any, trajectory: Trajectory | None) -> None:
    """Leave the conversation of `trajectory` with its sample, or take an earlier one away."""
    sample.metadata.pop(OFFERED, None)
    sample.metadata.pop(SCORED, None)
    if trajectory is not None:
        sample.metadata[OFFERED] = msgspec.to_builtins(candidate(trajectory))


def flat(samples: Iterable[Any]) -> list[Any]:
    """Return the samples of calls that returned a sample each, or a list of them."""
    lists = [cast("list[Any]", one) if isinstance(one, list) else [one] for one in samples]
    return [sample for members in lists for sample in members]


def rollout_of(sample: Any) -> Any:
    """Return the identity that samples of one rollout share, and no others.

    `rollout_id` may be write-only, as in slime 0.3.0. Then it is the index, which copies of a sample share, too.
    """
    named = getattr(sample, "rollout_id", None)
    return sample.index if named is None else named


def is_task(sample: Any) -> bool:
    """Tell whether a row is a task of orl, or at least none that the trainer could play alone."""
    metadata = metadata_of(sample)
    return metadata is None or "env_name" in metadata


def metadata_of(sample: Any) -> dict[str, Any] | None:
    """Return the metadata of `sample`, in which a JSON text becomes its object; None if it holds something else."""
    with suppress(ConfigError):
        sample.metadata = metadata_in(sample.metadata)
        return sample.metadata
    return None


def task_of(sample: Any) -> Task:
    """Return the task in a sample's metadata."""
    try:
        return task_in(sample.metadata)
    except (ConfigError, TypeError) as exc:
        raise ConfigError(f"row {sample.index}: {exc}") from exc
