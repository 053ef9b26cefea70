"""The context against its model, a list of ids: any appending and cutting, its JSON written as late and as rarely."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st
from orl_rollout.loop.token_buffer import TokenBuffer

token_ids = st.integers(0, 2**31 - 1)
ids = st.lists(token_ids, max_size=8)
steps = st.lists(
    st.tuples(st.just("extend"), ids) | st.tuples(st.just("cut"), st.tuples(st.integers(0, 40), st.integers(0, 40)))
    | st.tuples(st.just("json"), st.none()),
    max_size=12,
)  # fmt: skip


def written(context: TokenBuffer) -> list[int]:
    return json.loads(b"[" + context.json() + b"]")


@given(first=ids, steps=steps)
def test_a_context_is_a_list_that_knows_its_json(first, steps):
    context, model = TokenBuffer(first), list(first)
    for step, given_ in steps:
        if step == "extend":
            context.extend(given_)
            model.extend(given_)
        elif step == "cut":
            start, end = sorted(min(place, len(model)) for place in given_)
            context.cut(start, end)
            del model[start:end]
        else:
            assert written(context) == model
        assert list(context) == model
        assert len(context) == len(model)
        assert [context[place] for place in range(-len(model), len(model))] == model + model
        assert context[1:-1] == model[1:-1]
    assert written(context) == model


@given(st.lists(ids, max_size=10))
def test_an_id_is_encoded_once_however_often_it_is_asked_for(added):
    context = TokenBuffer()
    for more in added:
        context.extend(more)
        context.json()
        context.json()
    assert context.encoded == len(context) == sum(map(len, added))


@given(history=st.lists(ids, min_size=1, max_size=10), last=st.lists(token_ids, min_size=1, max_size=8), data=st.data())
def test_a_cut_in_what_was_never_asked_for_encodes_nothing_again(history, last, data):
    """The last turn's reasoning, cut out before the next request."""
    context = TokenBuffer()
    for more in history:
        context.extend(more)
        context.json()
    before = len(context)
    context.extend(last)
    start = data.draw(st.integers(before, before + len(last)))
    context.cut(start, data.draw(st.integers(start, before + len(last))))
    context.json()
    assert context.encoded == len(context)


@given(history=st.lists(ids.filter(bool), min_size=2, max_size=10), data=st.data())
def test_a_cut_encodes_again_from_the_piece_that_it_meets(history, data):
    context = TokenBuffer()
    for more in history:
        context.extend(more)
        context.json()
    size = len(context)
    start = data.draw(st.integers(0, size - 1))
    place, kept = 0, 0
    for more in history:
        place += len(more)
        kept = place if place <= start else kept
    context.cut(start, start + 1)
    context.json()
    assert context.encoded == size + len(context) - kept
