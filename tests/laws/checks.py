"""The laws as checks: plain functions that raise AssertionError if one is broken, without the code under test.

The properties call them with what orl makes, and `test_broken.py` with what broken parts would make.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Collection, Iterable, Sequence

from orl_core.datum import Datum
from orl_core.messages import Message, text_message
from orl_core.trajectory import Generation, Trajectory, Turn

Extend = Callable[[Sequence[int], Sequence[Message]], Sequence[int]]


def check_data(trajectory: Trajectory, data: tuple[Datum, ...]) -> None:
    """Law L1, stated turn by turn: what was shown, then what was returned, and of that what may train.

    The engine is shown what earlier turns left of themselves. A turn belongs to the datum that its predecessor belongs
    to, unless something of that one was hidden from it.
    """
    left = iter(data)
    datum: Datum | None = None
    shown: list[tuple[int, float | None, bool]] = []  # every id so far, its logprob where sampled, whether it may train
    for turn in trajectory.turns:
        begins = len(shown)
        shown.extend((token, None, False) for token in turn.observation)
        sampled = [pair for one in turn.generations for pair in zip(one.token_ids, one.logprobs, strict=True)]
        for place, (token, logprob) in enumerate(sampled):
            shown.append((token, logprob, trajectory.trainable and may_train(trajectory, turn, place)))
        if sampled:
            datum = datum or next(left, None)
            assert datum is not None
            assert (*datum.prompt, *datum.response)[: len(shown)] == tuple(token for token, _, _ in shown)
        if turn.stripped_spans:
            _check_end(trajectory, datum, shown)
            gone = {begins + place for start, end in turn.stripped_spans for place in range(start, end)}
            datum, shown = None, [(token, None, False) for at, (token, _, _) in enumerate(shown) if at not in gone]
    _check_end(trajectory, datum, shown)
    assert next(left, None) is None


def may_train(trajectory: Trajectory, turn: Turn, place: int) -> bool:
    """Return the mask policy's answer for one id of an action."""
    policy = trajectory.job.limits.train_on
    if turn.failed and not policy.failed_turns:
        return False
    if turn.spans is None:
        return policy.text and policy.calls and policy.reasoning
    parts = [span.part for span in turn.spans if span.start <= place < span.end]
    return {"text": policy.text, "calls": policy.calls, "reasoning": policy.reasoning}[parts[0] if parts else "text"]


def _check_end(trajectory: Trajectory, datum: Datum | None, shown: list[tuple[int, float | None, bool]]) -> None:
    """The datum ends with the last sampled id; masks and logprobs are those of what it holds, place by place."""
    if datum is None:
        return
    while shown[-1][1] is None:
        shown = shown[:-1]
    assert (*datum.prompt, *datum.response) == tuple(token for token, _, _ in shown)
    size = len(datum.response)
    assert size == len(datum.sampled) == len(datum.loss_mask) == len(datum.logprobs)
    assert all(logprob is None for _, logprob, _ in shown[: len(datum.prompt)])
    rest = shown[len(datum.prompt) :]
    assert datum.sampled == tuple(int(logprob is not None) for _, logprob, _ in rest)
    assert datum.loss_mask == tuple(int(trains) for _, _, trains in rest)
    assert datum.logprobs == tuple(logprob or 0.0 for _, logprob, _ in rest)
    assert datum.sampled[-1] == 1
    assert datum.trainable == trajectory.trainable
    assert datum.trainable or not any(datum.loss_mask)


def check_shown(answered: Iterable[tuple[Sequence[int], Generation]], data: tuple[Datum, ...]) -> None:
    """Law L1 at the engine: every request that it saw, with its answer, begins the one datum that carries it.

    `answered` are the ids shown and the generation of every request whose answer was taken.
    """
    ends = set[tuple[int, ...]]()
    told = 0
    for ids, generation in answered:
        if not generation.token_ids:
            continue
        told += len(generation.token_ids)
        seen = (*ids, *generation.token_ids)
        ends.add(seen)
        carrying = [datum for datum in data if _carries(datum, len(ids), seen)]
        assert len(carrying) == 1
        (datum,) = carrying
        start = len(ids) - len(datum.prompt)
        assert datum.logprobs[start : len(seen) - len(datum.prompt)] == generation.logprobs
    assert all(datum.prompt + datum.response in ends for datum in data)
    assert sum(sum(datum.sampled) for datum in data) == told


def _carries(datum: Datum, shown: int, seen: tuple[int, ...]) -> bool:
    start, end = shown - len(datum.prompt), len(seen) - len(datum.prompt)
    return start >= 0 and (datum.prompt + datum.response)[: len(seen)] == seen and all(datum.sampled[start:end])


def check_appended(extend: Extend, action_ids: Sequence[int], messages: Sequence[Message], tail: Sequence[int]) -> None:
    """Law L5 of the renderer: what follows any action is `tail`, the template's own, its closing once.

    `tail` begins with the closing. Whatever ids the action has, they are not said again.
    """
    closed = bool(action_ids) and action_ids[-1] == tail[0]
    assert list(extend(action_ids, messages)) == list(tail[1:] if closed else tail)


def check_text(
    extend: Extend,
    decode: Callable[[Sequence[int]], str],
    controls: Collection[int],
    action_ids: Sequence[int],
    messages: Sequence[Message],
) -> None:
    """Law L4: control ids are those of the same messages in plain words, and every text is there, whole."""
    ids = extend(action_ids, messages)
    blank = extend(action_ids, [text_message(message.role, "x", name="x") for message in messages])
    assert [token for token in ids if token in controls] == [token for token in blank if token in controls]
    shown = unicodedata.normalize("NFC", decode(ids))
    for message in messages:
        for block in message.content:
            assert unicodedata.normalize("NFC", getattr(block, "text", "")) in shown


def check_tree(trajectory: Trajectory, data: Sequence[Datum]) -> None:
    """Law L1 where turns branch: a datum is one path, and each turn is trained by one datum alone.

    A datum is found by its generations, which must be objects of their own.
    """
    paths = [shown_before(trajectory, index) for index in range(len(trajectory.turns))]
    owners: list[int] = []
    for datum in data:
        owned = [
            index
            for index, turn in enumerate(trajectory.turns)
            if any(made is generation for made in turn.generations for generation in datum.generations)
        ]
        owners += owned
        last = [index for index in owned if trajectory.turns[index].action_ids][-1]
        turn = trajectory.turns[last]
        assert (*datum.prompt, *datum.response) == (*paths[last], *turn.observation, *turn.action_ids)
        sampled = [token for index in owned for token in trajectory.turns[index].action_ids]
        marked = [token for token, mark in zip(datum.response, datum.sampled, strict=True) if mark]
        assert marked == sampled
        assert sum(datum.loss_mask) == (len(sampled) if trajectory.trainable else 0)
    said = [index for index, turn in enumerate(trajectory.turns) if turn.action_ids]
    assert sorted(index for index in owners if trajectory.turns[index].action_ids) == said


def shown_before(trajectory: Trajectory, index: int) -> list[int]:
    """The ids that the engine was shown before the observation of turn `index`."""
    turn = trajectory.turns[index]
    parent = index - 1 if turn.continues is None else turn.continues
    return [] if parent < 0 else [*shown_before(trajectory, parent), *trajectory.turns[parent].visible_ids]
