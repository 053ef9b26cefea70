"""From a row to the datum of the server's SDK: shifted once, with an advantage for each id.

The row of the ids x0 ... xN shows x0 ... xN-1 and trains x1 ... xN. So an id's target, logprob and advantage are at the
place at which the model sees the ids before it. An id that does not train has the advantage 0. The server sums the loss
over all ids of an update, so advantages are divided by the number of trained ids: the learning rate then does not
depend on it, and a rollout counts once, whether it comes as one row or as several (law L7).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from orl_core.datum import Datum
from orl_rollout.training.rows import Row
from tinker import Datum as TinkerDatum
from tinker import ModelInput

if TYPE_CHECKING:
    from tinker import PromptProvenanceSpan, SampledProvenanceSpan

SEQUENCE = "sequence_id"  # in a generation's extras


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
            "advantages": [*before, *(gained / ids for gained in row.advantages)],  # pyright: ignore[reportArgumentType]
        },
    )
    if not all(generation.extras.get(SEQUENCE) for generation in datum.generations if generation.token_ids):
        return bare
    return bare.with_provenance(_spans(datum, 0, len(whole) - 1), _spans(datum, 1, len(whole)))


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
