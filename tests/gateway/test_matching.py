"""Messages and arguments that say the same are equal; others are not."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from orl_core.messages import Message, TextBlock, ToolCall, text_message
from orl_gateway.episode.tree import canonical, next_key, root_key

from tests.gateway.agents import rewritten

values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)
arguments = st.dictionaries(st.text(max_size=3), values, max_size=3)


@given(given_arguments=arguments)
def test_arguments_of_another_writer_are_the_same(given_arguments: dict[str, Any]) -> None:
    assert canonical(given_arguments) == canonical(rewritten(given_arguments))
    assert canonical(given_arguments) == canonical(json.loads(json.dumps(given_arguments)))


@given(first=arguments, second=arguments)
def test_other_arguments_are_others(first: dict[str, Any], second: dict[str, Any]) -> None:
    same = plain(first) == plain(second)
    assert (canonical(first) == canonical(second)) is same


def plain(tree: Any) -> Any:
    """The tree with kinds, so that True is not 1, and every number as a double."""
    if isinstance(tree, dict):
        return {name: plain(value) for name, value in tree.items()}
    if isinstance(tree, list):
        return [plain(one) for one in tree]
    return ("number", float(tree)) if isinstance(tree, int | float) and not isinstance(tree, bool) else (tree,)


@pytest.mark.parametrize(
    ("first", "second"),
    [({"a": 10**400}, {"a": 10**401}), ({"a": "\ud800"}, {"a": "\ud800"}), ({"a": 2**53 + 1}, {"a": float(2**53)})],
)
def test_what_clients_cannot_carry_is_the_same(first: dict[str, Any], second: dict[str, Any]) -> None:
    assert canonical(first) == canonical(second)


def assistant(text: str, *calls: ToolCall, reasoning: str = "") -> Message:
    return Message(role="assistant", content=(TextBlock(text=text),), calls=calls, reasoning=reasoning)


LOOK = ToolCall(name="look", arguments={"at": 1})


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        (assistant("Well."), assistant(" Well.\n"), True),
        (assistant("Well.", reasoning="So"), assistant("Well."), True),
        (assistant("Well."), assistant("well."), False),
        (assistant("", LOOK), assistant(""), False),
        (assistant("", LOOK), assistant("", LOOK, LOOK), False),
        (assistant("a", ToolCall(name="b")), assistant("ab", ToolCall(name="")), False),
        (text_message("user", "Hi."), text_message("user", "Hi. "), False),
        (text_message("user", "Hi."), text_message("tool", "Hi."), False),
        (text_message("tool", "Hi.", name="a"), text_message("tool", "Hi.", name="b"), False),
    ],
)
def test_messages_that_say_the_same_have_one_key(first: Message, second: Message, same: bool) -> None:
    root = root_key(())
    assert (next_key(root, first) == next_key(root, second)) is same
    assert next_key(next_key(root, first), second) != next_key(root, second)
