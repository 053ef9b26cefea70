"""Schemas that people write and arguments that models write: each is judged, in bounded time and in one line."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from orl_core.errors import SessionError
from orl_core.messages import FailureKind, ParseFailure, ToolCall, ToolSpec
from orl_core.trajectory import StopReason
from orl_rollout.loop.tool_check import Toolbox
from orl_testing import ScriptedEngine, ScriptedSession

from tests.kit.strategies import JSON
from tests.rollout.loop.loop_play import call, play, result, say

WRONG = FailureKind.INVALID_ARGUMENTS


def tool(schema: Any, name: str = "act") -> ToolSpec:
    return ToolSpec(name=name, parameters=schema)


def called(arguments: dict[str, Any]) -> ToolCall:
    return ToolCall(name="act", arguments=arguments)


def field(**schema: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"x": schema}}


def nested(key: str, levels: int, inner: Any = None) -> dict[str, Any]:
    """Return `key` inside `key`, so many levels deep."""
    value: Any = {} if inner is None else inner
    for _ in range(levels):
        value = {key: value}
    return value


def expression(levels: int, leaf: Any) -> dict[str, Any]:
    value: Any = leaf
    for _ in range(levels):
        value = {"op": "xor", "left": value, "right": 1}
    return {"x": value}


NODE = {"$ref": "#/$defs/node"}
BINARY = [
    {"type": "object", "properties": {"op": {"const": name}, "left": NODE, "right": NODE}, "required": ["op", "left"]}
    for name in ("and", "or", "xor")
]
EXPRESSION = {"$defs": {"node": {"anyOf": [*BINARY, {"type": "integer"}]}}, **field(**NODE)}
TREE = {"type": "object", "properties": {"x": {"$ref": "#"}}}

# A name, the schema, the arguments, and whether they are wrong.
CASES: list[tuple[str, Any, dict[str, Any], FailureKind | None]] = [
    ("a name within", {"$ref": "#name", "$defs": {"a": {"$anchor": "name", "required": ["y"]}}}, {}, WRONG),
    ("a tree", TREE, nested("x", 60), None),
    ("a tree of 65 levels", TREE, nested("x", 65), WRONG),
    ("a tree of 50,000 levels", TREE, nested("x", 50_000), WRONG),
    ("a deep expression", EXPRESSION, expression(60, 1), None),
    ("a deep expression that is wrong", EXPRESSION, expression(60, "bad"), WRONG),
    ("a pattern that backtracks in Python", field(pattern="^(a+)+$"), {"x": "a" * 50 + "!"}, WRONG),
    ("a pattern that looks ahead", field(pattern="^(?=a)"), {"x": "b"}, WRONG),
    ("a pattern that looks ahead and fits", field(pattern="^(?=a)"), {"x": "ab"}, None),
    ("a pattern that backtracks too far", field(pattern=r"^(a|a)*\1?$"), {"x": "a" * 50 + "!"}, WRONG),
    ("a pattern for a long text", field(pattern=r"^(\w+\s?)*$"), {"x": "a" * 1_000_000 + "!"}, WRONG),
    ("a lone surrogate", field(pattern="^a$"), {"x": "\ud800"}, WRONG),
    ("a lone surrogate in both", {"properties": {"\ud800": {"type": "string"}}}, {"\ud800": "\ud800"}, None),
    ("a huge number, no fraction", field(multipleOf=0.75), {"x": 10**400 + 1}, WRONG),
    ("a huge number for a text", field(type="string"), {"x": 10**4_000}, WRONG),
    ("a number beyond its digits", field(type="string"), {"x": 1 << 2_000_000}, WRONG),
    ("a huge number as a number", field(type="integer", minimum=1.5), {"x": 10**400}, None),
    ("100,000 items", field(uniqueItems=True), {"x": list(range(100_000))}, None),
    ("15,000 items", field(uniqueItems=True), {"x": list(range(15_000))}, None),
    ("wrong items", field(items={"type": "string"}), {"x": list(range(15_000))}, WRONG),
    ("items out of 9,000", field(items={"enum": [[n] for n in range(9_000)]}), {"x": [[-1]] * 99}, WRONG),
    ("one and 1.0", field(uniqueItems=True), {"x": [1, 1.0]}, WRONG),
    ("a text of 10 MB", field(type="integer"), {"x": "a" * 10_000_000}, WRONG),
    ("a key of 1 MB", {"additionalProperties": False}, {"a" * 1_000_000: 1}, WRONG),
    ("9,000 properties", {"additionalProperties": False}, {f"p{n}": n for n in range(9_000)}, WRONG),
    ("what no part evaluated", {"unevaluatedProperties": False}, {"y": 1}, WRONG),
]


@pytest.mark.parametrize(("schema", "arguments", "kind"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
async def test_arguments_are_judged_in_one_short_line(
    schema: Any, arguments: dict[str, Any], kind: FailureKind | None
) -> None:
    tools = await Toolbox.of([tool(schema)])
    (checked,) = await tools.check_all([called(arguments)], None)
    assert getattr(checked, "kind", None) == kind
    if isinstance(checked, ParseFailure):
        assert len(checked.message) <= 500
        assert "\n" not in checked.message


@pytest.mark.parametrize(
    ("schema", "given", "words"),
    [
        ({"enum": list("abcdef")}, "x", '"x" is not one of ["a", "b", "c", "d", "e", "f"]'),
        ({"oneOf": [{"type": "string"}, {"minimum": 1}]}, 0, '0 is not of type "string", and 0 is less than'),
        ({"propertyNames": {"maxLength": 2}}, {"abc": 1}, '"abc" is longer than 2 characters'),
        ({"maxLength": 3}, "g" * 1000, f'"{"g" * 79}… is longer than 3 characters'),
        (NODE, expression(1, "bad")["x"], '"bad" is not of type "integer"'),
    ],
    ids=["enum", "alternatives", "name", "long", "expression"],
)
async def test_line_says_what_was_given_and_expected(schema: Any, given: Any, words: str) -> None:
    failure = Toolbox([tool({**EXPRESSION, **field(**schema)})]).check(called({"x": given}))
    assert failure is not None
    assert failure.message.startswith("invalid arguments for `act` at $.x: ")
    assert words in failure.message


async def rolled_out(*tools: ToolSpec, arguments: str = "{}") -> tuple[StopReason, str]:
    said = f'<tool_call>\n{{"name": "act", "arguments": {arguments}}}\n</tool_call>'
    session = ScriptedSession([result(finished=True)], tools=tools)
    trajectory = await play(ScriptedEngine([say(said), say(call(3))]), session)  # asserts that it was closed once
    return trajectory.stop_reason, trajectory.error


@pytest.mark.parametrize(
    "schema",
    [{"properties": 3}, nested("not", 100), nested("not", 100_000)],
    ids=["properties", "100 levels", "100,000 levels"],
)
async def test_rollout_with_a_wrong_schema_ends_in_error(schema: Any) -> None:
    reason, error = await rolled_out(tool(schema))
    assert reason is StopReason.ERROR
    assert "`act`" in error
    assert len(error) <= 700


async def test_rollout_refuses_more_tools_than_a_model_can_read() -> None:
    assert (await rolled_out(*(tool({}, f"act{n}") for n in range(2_000))))[0] is StopReason.ERROR
    assert (await rolled_out(*(tool({"description": "x" * 100_000}, f"act{n}") for n in range(100))))[0] is (
        StopReason.ERROR
    )


async def test_huge_number_of_a_model_is_its_mistake() -> None:
    reason, error = await rolled_out(tool(field(multipleOf=0.75)), arguments=f'{{"x": {10**400 + 1}}}')
    assert (reason, error) == (StopReason.FINISHED, "")


KEYWORDS = [
    "$ref", "$anchor", "$dynamicRef", "$dynamicAnchor", "$schema", "allOf", "anyOf", "oneOf", "not", "if", "then",
    "type", "enum", "const", "properties", "required", "additionalProperties", "unevaluatedProperties", "items",
    "else", "prefixItems", "contains", "unevaluatedItems", "pattern", "patternProperties", "minimum", "multipleOf",
    "uniqueItems",
]  # fmt: skip
SCHEMA_LIKE = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.sampled_from(["#", "#/$defs/a"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from([*KEYWORDS, "$defs", "a", "x"]), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(st.dictionaries(st.sampled_from([*KEYWORDS, "$defs", "$id"]), SCHEMA_LIKE | JSON, max_size=4), JSON)
def test_no_json_as_schema_raises_anything_but_session_error(schema: dict[str, Any], given: Any) -> None:
    with suppress(SessionError):
        found = Toolbox([tool(schema)]).check(called({"x": given}))
        assert found is None or found.kind is WRONG


@pytest.mark.parametrize(
    ("arguments", "calls"),
    [({"x": list(range(5_000))}, 1), ({"x": list(range(100))}, 32)],
    ids=["one long check", "many short checks"],
)
async def test_checks_of_an_action_are_made_off_the_event_loop(arguments: dict[str, Any], calls: int) -> None:
    """A trace function of this thread sees every check that runs on it."""
    seen: list[str] = []
    tools = await Toolbox.of([tool(field(items={"type": "integer", "minimum": 0}))])
    before = sys.getprofile()
    sys.setprofile(lambda frame, event, _: seen.append(frame.f_code.co_name) if event == "call" else None)
    try:
        checked = await tools.check_all([called(arguments)] * calls, None)
    finally:
        sys.setprofile(before)
    assert checked == [called(arguments)] * calls
    assert "complaint" not in seen
