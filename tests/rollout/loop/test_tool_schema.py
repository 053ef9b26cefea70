"""Tool schemas and arguments that nobody vouches for: each is judged, and no rollout ends otherwise than it should."""

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
from orl_rollout.loop.schema_keywords import KEYWORDS
from orl_rollout.loop.tool_check import Toolbox
from orl_testing import ScriptedEngine, ScriptedSession

from tests.kit.strategies import JSON
from tests.rollout.loop.hostile_tools import ARGUMENTS, SCHEMAS, Verdict, called, field, nested, tool
from tests.rollout.loop.loop_play import call, play, result, say


async def judged(schema: Any, arguments: dict[str, Any]) -> tuple[Verdict, str]:
    """Return the verdict on a call, and the line that says so."""
    try:
        tools = await Toolbox.of([tool(schema)])
        (checked,) = await tools.check_all([called(arguments)], None)
    except SessionError as fault:
        return SessionError, str(fault)
    return (checked.kind, checked.message) if isinstance(checked, ParseFailure) else (None, "")


@pytest.mark.parametrize(
    ("schema", "arguments", "verdict"),
    [case[1:] for case in SCHEMAS + ARGUMENTS],
    ids=[case[0] for case in SCHEMAS + ARGUMENTS],
)
async def test_hostile_schemas_and_arguments_are_judged(
    schema: Any, arguments: dict[str, Any], verdict: Verdict
) -> None:
    found, line = await judged(schema, arguments)
    assert found == verdict
    assert len(line) <= 700
    assert "\n" not in line


async def rolled_out(*tools: ToolSpec, arguments: str = "{}") -> tuple[StopReason, str]:
    said = f'<tool_call>\n{{"name": "act", "arguments": {arguments}}}\n</tool_call>'
    session = ScriptedSession([result(finished=True)], tools=tools)
    trajectory = await play(ScriptedEngine([say(said), say(call(3))]), session)  # asserts that it was closed once
    return trajectory.stop_reason, trajectory.error


@pytest.mark.parametrize(
    "schema",
    [{"$ref": "#"}, {"not": {"$ref": "#"}}, {"properties": 3}, nested("not", 100), nested("not", 100_000)],
    ids=["ref", "not", "properties", "100 levels", "100,000 levels"],
)
async def test_rollout_with_hostile_schema_ends_in_error(schema: Any) -> None:
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
    factor = {"type": "object", "properties": {"x": {"multipleOf": 0.75}}}
    reason, error = await rolled_out(tool(factor), arguments=f'{{"x": {10**400 + 1}}}')
    assert (reason, error) == (StopReason.FINISHED, "")


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
        found = Toolbox([tool(schema)]).check(ToolCall(name="act", arguments={"x": given}))
        assert found is None or found.kind is FailureKind.INVALID_ARGUMENTS


LONG = {"x": list(range(5_000))}
MIDDLING = {"x": list(range(100))}


@pytest.mark.parametrize(
    ("schema", "arguments", "calls"),
    [({}, LONG, 1), ({}, MIDDLING, 32), ({"x": 1}, {"x": LONG, "y": LONG}, 32)],
    ids=["one long check", "many short checks", "many large arguments"],
)
async def test_checks_of_an_action_are_made_off_the_event_loop(
    schema: dict[str, Any], arguments: dict[str, Any], calls: int
) -> None:
    """A trace function of this thread sees every step of a check that runs on it."""
    seen: list[str] = []
    tools = await Toolbox.of([tool(schema or field(items={"type": "integer", "minimum": 0}))])
    before = sys.getprofile()
    sys.setprofile(lambda frame, event, _: seen.append(frame.f_code.co_name) if event == "call" else None)
    try:
        checked = await tools.check_all([called(arguments)] * calls, None)
    finally:
        sys.setprofile(before)
    assert checked == [called(arguments)] * calls
    assert seen.count("minimum") < 500
    assert seen.count("_size") < 4_000
