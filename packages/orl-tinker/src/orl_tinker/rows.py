"""From outcomes to the rows that the server trains on: one for each datum, shifted once, with an advantage for each id.

The row of the ids x0 ... xN shows x0 ... xN-1 and trains x1 ... xN. So an id's target, logprob and advantage are at the
place at which the model sees the ids before it. An id that does not train has the advantage 0. The server sums the loss
over all ids of an update, so advantages are divided by the number of trained ids: the learning rate then does not
depend on it, and a rollout counts once, whether it comes as one row or as several (law L7).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from msgspec import Struct
from orl_core.datum import Datum
from orl_core.reward import group_advantages, turn_advantages
from orl_core.turns import advantages_per_token, returns_to_go, turns_of
from orl_rollout.results.outcome import Outcome
from tinker import Datum as TinkerDatum
from tinker import ModelInput

if TYPE_CHECKING:
    from tinker import PromptProvenanceSpan, SampledProvenanceSpan

SEQUENCE = "sequence_id"  # in a generation's extras


class Row(Struct, frozen=True, kw_only=True):
    """A datum and the advantage of each of its actions, in the order of `Datum.ends`."""

    datum: Datum
    advantages: tuple[float, ...]


def rows_of(outcomes: Sequence[Outcome], group_size: int, *, turns: bool) -> list[Row]:
    """Return the rows that train, with advantages within each `group_size` adjacent outcomes.

    If `turns`, each action has its own advantage, of the reward from there on; else that of its rollout.
    """
    groups = [place // group_size for place in range(len(outcomes))]
    trains = [outcome.trains for outcome in outcomes]
    if turns:
        returns = [returns_to_go(turns_of(outcome.datums), outcome.reward) for outcome in outcomes]
        advantages = turn_advantages(returns, groups, trains, center=True, scale=True)
    else:
        rewards = [outcome.reward for outcome in outcomes]
        whole = group_advantages(rewards, groups, range(len(outcomes)), trains, center=True, scale=True)
        advantages = [[value] * _actions(outcome) for value, outcome in zip(whole, outcomes, strict=True)]
    rows: list[Row] = []
    for outcome, own in zip(outcomes, advantages, strict=True):
        values = iter(own)
        rows += [Row(datum=datum, advantages=tuple(islice(values, len(datum.ends)))) for datum in outcome.datums]
    return [row for row in rows if row.datum.trainable and any(row.datum.loss_mask)]


def _actions(outcome: Outcome) -> int:
    return sum(len(datum.ends) for datum in outcome.datums)


def trained_ids(rows: Sequence[Row]) -> int:
    """Count the ids that train."""
    return sum(sum(row.datum.loss_mask) for row in rows)


def tinker_datum(row: Row, ids: int) -> TinkerDatum:
    """Return what the server trains for `row`, in an update of so many `ids`."""
    datum = row.datum
    whole = [*datum.prompt, *datum.response]
    before = [0.0] * (len(datum.prompt) - 1)
    bare = TinkerDatum(
        model_input=ModelInput.from_ints(whole[:-1]),
        loss_fn_inputs={
            "target_tokens": whole[1:],  # pyright: ignore[reportArgumentType]
            "logprobs": [*before, *datum.logprobs],  # pyright: ignore[reportArgumentType]
            "advantages": [*before, *_per_id(row, ids)],  # pyright: ignore[reportArgumentType]
        },
    )
    if not all(generation.extras.get(SEQUENCE) for generation in datum.generations if generation.token_ids):
        return bare
    return bare.with_provenance(_spans(datum, 0, len(whole) - 1), _spans(datum, 1, len(whole)))


def _per_id(row: Row, ids: int) -> Iterator[float]:
    """Yield the advantage of each id of the response: what follows an action's last id belongs to the next one."""
    turns = list(zip(row.datum.ends, row.advantages, strict=True))
    spread = advantages_per_token(turns, len(row.datum.response))
    for trained, advantage in zip(row.datum.loss_mask, spread, strict=True):
        yield advantage / ids if trained else 0.0


def _spans(datum: Datum, start: int, end: int) -> list[PromptProvenanceSpan | SampledProvenanceSpan]:
    """Return who says which of the ids [start:end] of the row: a request's prompt, or its answer."""
    from tinker import PromptProvenanceSpan, SampledProvenanceSpan  # where answers have names: since SDK 0.26

    places = [len(datum.prompt) + place for place, sampled in enumerate(datum.sampled) if sampled]
    spans, at, done = list[PromptProvenanceSpan | SampledProvenanceSpan](), 0, 0
    for generation in datum.generations:
        if not generation.token_ids:
            continue
        begins, length, name = places[done], len(generation.token_ids), generation.extras[SEQUENCE]
        ends, done = begins + length, done + length
        for kind, first, last, zero in (
            (PromptProvenanceSpan, at, begins, 0),
            (SampledProvenanceSpan, begins, ends, begins),
        ):
            low, high = max(first, start), min(last, end)
            if low < high:
                spans.append(kind(sequence_id=name, offset=low - zero, length=high - low))
        at = ends
    return spans
