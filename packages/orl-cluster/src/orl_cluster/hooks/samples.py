"""From an outcome to the trainer's Sample: the fields that train, those that its metrics read, and its status.

It works on any object with the fields that the Samples of trainers share, and never imports a trainer. A sample that
does not train is well-formed all the same: a trainer looks at every sample of a batch. Fields that only one trainer has
are written by its adapter.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any, cast

import msgspec
from orl_core.datum import Datum
from orl_core.trajectory import StopReason
from orl_rollout.results.metrics import stats_of
from orl_rollout.results.outcome import Outcome

from orl_cluster.hooks.group_scores import store_conversation
from orl_cluster.hooks.rows import metadata_of

STATS = "orl_measure"  # in a sample's metadata

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
