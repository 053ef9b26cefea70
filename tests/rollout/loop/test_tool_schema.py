"""Schemas that people write and arguments that models write: each is judged, in bounded time and in one line."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from orl_core.messages import FailureKind, ParseFailure, ToolCall, ToolSpec
from orl_core.trajectory import StopReason
from orl_rollout.loop.tool_check import Toolbox
from orl_testing import ScriptedEngine, ScriptedSession

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
    ("a tree of 50,000 levels", TREE, nested("x", 50_000), WRONG),
    ("a deep expression", EXPRESSION, expression(60, 1), None),
    ("a deep expression that is wrong", EXPRESSION, expression(60, "bad"), WRONG),
    ("a pattern that looks ahead", field(pattern="^(?=a)"), {"x": "b"}, WRONG),
    ("a pattern that looks ahead and fits", field(pattern="^(?=a)"), {"x": "ab"}, None),
    ("a pattern that backtracks too far", field(pattern=r"^(a|a)*\1?$"), {"x": "a" * 50 + "!"}, WRONG),
    ("a lone surrogate", field(pattern="^a$"), {"x": "\ud800"}, WRONG),
    ("a lone surrogate in both", {"properties": {"\ud800": {"type": "string"}}}, {"\ud800": "\ud800"}, None),
    ("a huge number, no fraction", field(multipleOf=0.75), {"x": 10**400 + 1}, WRONG),
    ("a number beyond its digits", field(type="string"), {"x": 1 << 2_000_000}, WRONG),
    ("a text of 10 MB", field(type="integer"), {"x": "a" * 10_000_000}, WRONG),
]


@pytest.mark.parametrize(("schema", "arguments", "kind"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
async def test_arguments_are_judged_in_one_short_line(
    schema: Any, arguments: dict[str, Any], kind: FailureKind | None
) -> None:
    tools = Toolbox([tool(schema)])
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
    [{"properties": 3}, nested("not", 100_000)],
    ids=["properties", "100,000 levels"],
)
async def test_rollout_with_a_wrong_schema_ends_in_error(schema: Any) -> None:
    reason, error = await rolled_out(tool(schema))
    assert reason is StopReason.ERROR
    assert "`act`" in error
    assert len(error) <= 700


async def test_huge_number_of_a_model_is_its_mistake() -> None:
    reason, error = await rolled_out(tool(field(multipleOf=0.75)), arguments=f'{{"x": {10**400 + 1}}}')
    assert (reason, error) == (StopReason.FINISHED, "")


@pytest.mark.parametrize(
    ("arguments", "calls"),
    [({"x": list(range(5_000))}, 1), ({"x": list(range(100))}, 32)],
    ids=["one long check", "many short checks"],
)
async def test_checks_of_an_action_are_made_off_the_event_loop(arguments: dict[str, Any], calls: int) -> None:
    """A trace function of this thread sees every check that runs on it."""
    seen: list[str] = []
    tools = Toolbox([tool(field(items={"type": "integer", "minimum": 0}))])
    before = sys.getprofile()
    sys.setprofile(lambda frame, event, _: seen.append(frame.f_code.co_name) if event == "call" else None)
    try:
        checked = await tools.check_all([called(arguments)] * calls, None)
    finally:
        sys.setprofile(before)
    assert checked == [called(arguments)] * calls
    assert "complaint" not in seen
