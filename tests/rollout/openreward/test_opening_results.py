"""An opening that holds calls has one result for each, matched by id; anything else is refused."""

from __future__ import annotations

from typing import Any

import pytest
from orl_core.errors import SessionAnswerError
from orl_core.messages import text_of
from orl_rollout.openreward.wire import messages_of


def said(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def call(id_: str) -> dict[str, Any]:
    return {"type": "tool_call", "id": id_, "name": f"look_{id_}", "input": {}}


def result(id_: str, text: str = "") -> dict[str, Any]:
    return {"type": "tool_result", "tool_call_id": id_, "blocks": [said(text or f"Saw {id_}.")]}


def opening(calls: str, *answers: list[dict[str, Any]]) -> list[dict[str, Any]]:
    users = [{"role": "user", "blocks": blocks} for blocks in ([said("Play.")], *answers)]
    return [users[0], {"role": "assistant", "blocks": [*map(call, calls)]}, *users[1:]]


def test_results_stand_behind_their_calls_in_order() -> None:
    reply = opening("abc", [result("c"), said("Wait.")], [result("a"), result("b"), said("Now.")])
    user, action, *rest = messages_of(reply)
    assert [(one.role, one.name, text_of(one.content)) for one in rest] == [
        ("tool", "look_a", "Saw a."),
        ("tool", "look_b", "Saw b."),
        ("tool", "look_c", "Saw c."),
        ("user", "", "Wait."),
        ("user", "", "Now."),
    ]
    assert (user.role, len(action.calls)) == ("user", 3)


def test_id_that_comes_again_is_another_call() -> None:
    reply = [*opening("a", [result("a", "One.")]), *opening("a", [result("a", "Two.")])[1:]]
    assert [text_of(one.content) for one in messages_of(reply) if one.role == "tool"] == ["One.", "Two."]


@pytest.mark.parametrize(
    ("reply", "names"),
    [
        (opening("ab", [result("b")]), ["'a'"]),
        (opening("ab"), ["'a'", "'b'"]),
        (opening("a", [result("a"), result("a")]), ["'a'"]),
        (opening("a", [result("a"), result("x")]), ["'x'"]),
        (opening("aa", [result("a")]), ["'a'"]),
    ],
    ids=("one is missing", "all are missing", "one twice", "one without a call", "an id twice"),
)
def test_incomplete_set_is_refused(reply: list[dict[str, Any]], names: list[str]) -> None:
    with pytest.raises(SessionAnswerError) as refused:
        messages_of(reply)
    assert all(name in str(refused.value) for name in names)
    assert ("'b'" in str(refused.value)) is ("'b'" in names)
