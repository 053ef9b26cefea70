"""Rows for the server: T1, T2, T6 and T8 of the cookbook's recipe, turn advantages, several rows (L7)."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from orl_core.datum import Datum
from orl_core.estimators import ESTIMATORS
from orl_core.trajectory import StopReason
from orl_rollout.training.rows import Row, rows_of, trained_ids
from orl_testing.tinker import model
from orl_tinker.run import tinker_datum

from tests.kit.paid_turns import Turns, outcome, split, turns_of
from tests.tinker.recipe import build_datum

GRPO = ESTIMATORS["grpo"]


def row_of(datum: Datum, advantage: float) -> Row:
    return Row(datum=datum, advantages=tuple(advantage * trains for trains in datum.loss_mask))


def laid(datum: Any) -> dict[str, list[float]]:
    return {name: tensor.data for name, tensor in datum.loss_fn_inputs.items()}


@given(turns_of)
def test_each_sampled_id_trains_where_it_was_sampled(turns: Turns):
    """T1 and T2: targets shifted once, logprob and advantage on the sampled ids of each turn."""
    (datum,) = outcome(turns).datums
    made = tinker_datum(row_of(datum, 2.0), 1)
    whole = [*datum.prompt, *datum.response]
    columns = laid(made)
    assert list(made.model_input.to_ints()) == whole[:-1]
    assert columns["target_tokens"] == whole[1:]
    expected: list[tuple[int, float, float]] = []
    for at, (shown, ids, _) in enumerate(turns):
        expected += [(token, 0.0, 0.0) for token in shown]
        expected += [(token, -(at + 1) / 8 - place / 64, 2.0) for place, token in enumerate(ids)]
    assert list(zip(*columns.values(), strict=True)) == expected[1:]


def test_recipe_trains_other_targets():
    """T1 and T2 in the recipe: the target of an id is that id, and a tool's answer gets the advantage."""
    turns: Turns = [([1, 2], [3, 4], 0.0), ([5, 6], [7, 8], 1.0)]
    one = outcome(turns)
    ids, sampled = [1, 2, 3, 4, 5, 6, 7, 8], [3, 4, 7, 8]
    theirs = build_datum(ids, sampled, [-0.1] * 4, 1.0, 99)
    ours = tinker_datum(row_of(one.datums[0], 1.0), 1)
    assert laid(theirs)["target_tokens"] == theirs.model_input.to_ints()
    trained = [
        [target for target, advantage in zip(columns["target_tokens"], columns["advantages"], strict=True) if advantage]
        for columns in (laid(theirs), laid(ours))
    ]
    assert trained == [[5, 6, 7, 8], sampled]


def test_rollout_that_ran_out_of_tokens_trains_what_it_sampled():
    """T6: the recipe cuts the row after the fact, and the advantage stays on other ids."""
    ids = [1, 2, 3, 4, 5, 6, 7, 8]
    theirs = laid(build_datum(ids, [3, 4, 7, 8], [-0.1] * 4, 1.0, 6))
    assert [target for target, value in zip(theirs["target_tokens"], theirs["advantages"], strict=True) if value] == [
        3, 4, 5, 6,
    ]  # fmt: skip
    cut = outcome([([1, 2], [3, 4], 0.0), ([5, 6], [7], 1.0)], StopReason.MAX_TOKENS)
    ours = laid(tinker_datum(row_of(cut.datums[0], 1.0), 1))
    assert [target for target, value in zip(ours["target_tokens"], ours["advantages"], strict=True) if value] == [
        3,
        4,
        7,
    ]


@given(st.lists(turns_of, min_size=2, max_size=4), st.booleans())
def test_rollout_counts_once_as_one_row_or_as_several(rollouts: list[Turns], turns: bool):
    """L7: the loss of a batch does not depend on the rows."""
    whole = [outcome(one) for one in rollouts]
    losses = []
    for outcomes in (whole, list(map(split, whole))):
        rows = rows_of(outcomes, len(outcomes), GRPO, turns=turns)
        ids = trained_ids(rows)
        assert ids == sum(len(sampled) for one in rollouts for _, sampled, _ in one)
        losses.append(sum(loss_of(row, ids) for row in rows))
    assert losses[0] == pytest.approx(losses[1], abs=1e-6)


def loss_of(row: Row, ids: int) -> float:
    """The loss of a row under a policy whose logprob of an id depends on its whole context."""
    made = tinker_datum(row, ids)
    inputs = {name: torch.tensor(values) for name, values in laid(made).items()}
    context = list(itertools.accumulate(made.model_input.to_ints()))
    logprobs = torch.tensor([-((7 * target + total) % 31 + 1) / 31 for target, total in
                             zip(inputs["target_tokens"].tolist(), context, strict=True)])  # fmt: skip
    return float(model.ppo(model.Row(ids=(), inputs=inputs), logprobs, {}).sum())


def test_loss_does_not_grow_with_the_ids_of_a_batch():
    """T8: a batch that holds each rollout twice has the same gradient; the recipe's doubles."""
    batch = [outcome([([1, 2], [3, 4, 5], 1.0)]), outcome([([1, 2], [6, 7], 0.0)])]
    once, twice = (rows_of(one, 2, GRPO, turns=False) for one in (batch, batch * 2))
    ours = [sum(loss_of(row, trained_ids(rows)) for row in rows) for rows in (once, twice)]
    theirs = [sum(loss_of(row, 1) for row in rows) for rows in (once, twice)]
    assert ours[0] == pytest.approx(ours[1], abs=1e-7)
    assert theirs[1] == pytest.approx(2 * theirs[0])
    assert abs(ours[0]) > 1e-3
