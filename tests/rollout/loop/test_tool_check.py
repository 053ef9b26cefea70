"""The check of a call before it is made: one line that names the path, what was given and what was expected."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from orl_core.errors import SessionError
from orl_core.messages import FailureKind, ParseFailure, ToolCall, ToolSpec
from orl_rollout.loop.tool_check import Toolbox

from tests.kit.strategies import JSON

SCHEMA = {
    "type": "object",
    "properties": {
        "count": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
        "kind": {"enum": ["red", "blue"]},
        "where": {"type": "object", "properties": {"at": {"type": "array", "items": {"type": "number"}}}},
    },
    "required": ["count"],
    "additionalProperties": False,
}


def toolbox(schema: dict[str, Any]) -> Toolbox:
    return Toolbox([ToolSpec(name="act", parameters=schema), ToolSpec(name="look")])


def check(schema: dict[str, Any], **arguments: Any) -> ParseFailure | None:
    return toolbox(schema).check(ToolCall(name="act", arguments=arguments))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"count": "x"}, 'at $.count: "x" is not of type "integer", and "x" is not of type "null"'),
        ({"count": 1, "kind": "green"}, 'at $.kind: "green" is not one of ["red", "blue"]'),
        ({"count": 1, "where": {"at": [1, "q"]}}, 'at $.where.at[1]: "q" is not of type "number"'),
        ({}, 'at $: "count" is a required property'),
        ({"count": 1, "size": 2}, "at $: Additional properties are not allowed ('size' was unexpected)"),
        ({"count": 1, "kind": "g" * 1000}, f'at $.kind: "{"g" * 79}… is not one of ["red", "blue"]'),
    ],
)
def test_a_wrong_argument_is_answered_by_path_given_and_expected(arguments: dict[str, Any], words: str):  # shows A38
    failure = check(SCHEMA, **arguments)
    assert failure is not None
    assert failure.kind is FailureKind.INVALID_ARGUMENTS
    assert failure.message == f"invalid arguments for `act` {words}"


def test_what_fits_can_be_made_and_what_is_not_listed_cannot():  # shows G9
    assert check(SCHEMA, count=None, kind="red") is None
    failure = toolbox(SCHEMA).check(ToolCall(name="fly"))
    assert failure is not None
    assert failure.kind is FailureKind.UNKNOWN_TOOL
    assert failure.message == "unknown tool `fly`; the tools are: act, look"


def test_unknown_tool_is_answered_in_one_short_line():  # shows D16
    failure = toolbox(SCHEMA).check(ToolCall(name="fly\n" * 10_000))
    assert failure is not None
    assert "\n" not in failure.message
    assert len(failure.message) <= 500
    assert failure.message.endswith("the tools are: act, look")


@given(st.dictionaries(st.sampled_from(["count", "kind", "where", "at"]) | st.text(max_size=5), JSON, max_size=4))
def test_any_arguments_are_judged_in_one_line(arguments: dict[str, Any]):
    failure = check(SCHEMA, **arguments) if "schema" not in arguments else None
    assert failure is None or ("\n" not in failure.message and len(failure.message) <= 500)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "no such type"},
        {"properties": 1},
        {"properties": {"x": {"$ref": "#/nowhere"}}},
        {"properties": {"x": {"pattern": "("}}},
        {"properties": {"x": {"multipleOf": float("nan")}}},
    ],
    ids=["type", "properties", "reference", "pattern", "factor"],
)
def test_parameters_without_schema_are_the_environments_fault(schema: dict[str, Any]):
    with pytest.raises(SessionError, match="tool `act` has parameters that are not a JSON schema"):
        toolbox(schema)


async def test_a_schema_elsewhere_is_not_fetched(tmp_path: Path):
    asked = 0

    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal asked
        asked += 1
        writer.close()

    file = tmp_path / "schema.json"
    file.write_text("{}")
    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/schema"
        for address in (url, file.as_uri()):
            with pytest.raises(SessionError, match="does not fetch"):
                await asyncio.to_thread(toolbox, {"properties": {"x": {"$ref": address}}})
    assert asked == 0
