"""The hermes parser: golden cases, and what holds for any text at all."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from orl_core.errors import RenderError
from orl_core.messages import Action, FailureKind, ParseFailure, ToolCall
from orl_core.tools import delimiters, parse
from orl_core.tools.strict_json import MAX_DEPTH

from tests.kit.strategies import json_values

GOLDEN = json.loads((Path(__file__).parents[2] / "golden" / "hermes.json").read_text(encoding="utf-8"))
FRAGMENTS = st.sampled_from(
    [
        *delimiters("hermes"),
        "<tool_call>\n",
        '{"name": "a"}',
        '{"name": "a", "arguments": {"x": "',
        '"',
        "{",
        "}",
        "\\",
        "\n",
    ]
)
SOUP = st.lists(FRAGMENTS | st.text(max_size=4), max_size=12).map("".join)
NAMES = st.text(min_size=1, max_size=8).filter(lambda name: name.isprintable())
CALLS = st.builds(ToolCall, name=NAMES, arguments=st.dictionaries(NAMES, json_values, max_size=3))


def block(call: ToolCall) -> str:
    return f"<tool_call>\n{json.dumps({'name': call.name, 'arguments': call.arguments})}\n</tool_call>"


@pytest.mark.parametrize("case", GOLDEN, ids=lambda case: case["case"])
def test_golden(case: dict[str, Any]) -> None:
    expected = msgspec.convert(
        {"text": case.get("said", ""), "reasoning": case.get("reasoning", ""), "calls": case.get("calls", [])}, Action
    )
    assert parse(case["text"], reasoning_opened=case.get("opened", False)) == expected


@given(SOUP | st.text(st.characters(codec=None)), st.booleans())
@example("<tool_call>" + '{"a":' * 100_000, False)
@example("<tool_call>" + "[" * 100_000 + "</tool_call>", False)
@example('<tool_call>{"name": "a", "arguments": {"x": ' + "1" * 5000 + "}}</tool_call>", False)
@example("<tool_call>\ud800</tool_call>\udfff", False)
def test_any_text_gives_an_action_that_a_journal_can_hold(text: str, opened: bool) -> None:
    action = parse(text, reasoning_opened=opened)
    msgspec.json.encode(action)
    for call in action.calls:
        if isinstance(call, ParseFailure):
            assert call.message
            assert "\n" not in call.message


@given(SOUP, st.booleans())
def test_every_opening_tag_outside_reasoning_counts_once_at_most(text: str, opened: bool) -> None:
    assert len(parse(text, reasoning_opened=opened).calls) <= text.count("<tool_call>")


@given(st.lists(CALLS, min_size=1, max_size=3), st.integers(min_value=0))
def test_cut_text_gives_the_complete_calls_before_the_cut(calls: list[ToolCall], seed: int) -> None:
    text = "\n".join(map(block, calls))
    cut = seed % (len(text) + 1)
    found = parse(text[:cut]).calls
    whole = [call for call in found if isinstance(call, ToolCall)]
    assert whole == calls[: len(whole)]
    assert len(whole) >= text[:cut].count("</tool_call>") - "".join(map(repr, calls)).count("</tool_call>")
    assert [call.kind for call in found if isinstance(call, ParseFailure)] in ([], [FailureKind.UNCLOSED])


@given(st.lists(CALLS, max_size=3))
def test_what_is_written_is_read(calls: list[ToolCall]) -> None:
    assert parse("".join(map(block, calls))).calls == tuple(calls)


@pytest.mark.parametrize("depth", [MAX_DEPTH - 2, MAX_DEPTH - 1, 500])
def test_nesting_is_limited_by_a_fixed_depth(depth: int) -> None:
    text = '<tool_call>{"name": "a", "arguments": {"x": ' + "[" * depth + "]" * depth + "}}</tool_call>"
    (call,) = parse(text).calls
    assert isinstance(call, ToolCall) == (depth == MAX_DEPTH - 2)


@pytest.mark.parametrize("unit", ["<tool_call>", '<tool_call>{"', '<tool_call>{"a": "', "<think>", '<tool_call>{",":"'])
def test_a_long_turn_of_nothing_but_tags_is_read(unit: str) -> None:
    action = parse(unit * 512)
    assert len(action.calls) <= 512
    assert all(isinstance(call, ParseFailure) for call in action.calls)


def test_an_unknown_format_is_refused_by_name() -> None:
    with pytest.raises(RenderError, match="morse"):
        parse("", "morse")  # type: ignore[arg-type]
