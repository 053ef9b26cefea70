"""The check of a call before it is made, in bounded time: one line with the path, what was given and expected."""

from __future__ import annotations

import asyncio
import sys
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
WRONG = FailureKind.INVALID_ARGUMENTS


def toolbox(schema: Any) -> Toolbox:
    return Toolbox([ToolSpec(name="act", parameters=schema), ToolSpec(name="look")])


def called(arguments: dict[str, Any]) -> ToolCall:
    return ToolCall(name="act", arguments=arguments)


def field(**schema: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"x": schema}}


def nested(key: str, levels: int) -> dict[str, Any]:
    """Return `key` inside `key`, so many levels deep."""
    value: dict[str, Any] = {}
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


@pytest.mark.parametrize(
    ("schema", "arguments", "words"),
    [
        (SCHEMA, {"count": "x"}, 'at $.count: "x" is not of type "integer", and "x" is not of type "null"'),
        (SCHEMA, {"count": 1, "where": {"at": [1, "q"]}}, 'at $.where.at[1]: "q" is not of type "number"'),
        (SCHEMA, {"count": 1, "size": 2}, "at $: Additional properties are not allowed ('size' was unexpected)"),
        (SCHEMA, {"count": 1, "kind": "g" * 1000}, f'at $.kind: "{"g" * 79}… is not one of ["red", "blue"]'),
        (field(oneOf=[{"type": "string"}, {"minimum": 1}]), {"x": 0}, 'at $.x: 0 is not of type "string", and 0 is'),
        (field(propertyNames={"maxLength": 2}), {"x": {"abc": 1}}, 'at $.x: "abc" is longer than 2 characters'),
        (EXPRESSION, expression(1, "bad"), '"bad" is not of type "integer"'),
    ],
)
def test_line_says_what_was_given_and_expected(schema: Any, arguments: dict[str, Any], words: str):
    failure = toolbox(schema).check(called(arguments))
    assert failure is not None
    assert failure.kind is FailureKind.INVALID_ARGUMENTS
    assert failure.message.startswith("invalid arguments for `act` at $")
    assert words in failure.message


def test_what_fits_can_be_made_and_what_is_not_listed_cannot():
    assert toolbox(SCHEMA).check(called({"count": None, "kind": "red"})) is None
    for name in ("fly", "fly\n" * 10_000):
        failure = toolbox(SCHEMA).check(ToolCall(name=name))
        assert failure is not None
        assert failure.kind is FailureKind.UNKNOWN_TOOL
        assert failure.message.startswith("unknown tool `fly")
        assert failure.message.endswith("`; the tools are: act, look")
        assert "\n" not in failure.message
        assert len(failure.message) <= 500


@given(st.dictionaries(st.sampled_from(["count", "kind", "where", "at"]) | st.text(max_size=5), JSON, max_size=4))
def test_any_arguments_are_judged_in_one_line(arguments: dict[str, Any]):
    failure = toolbox(SCHEMA).check(called(arguments))
    assert failure is None or ("\n" not in failure.message and len(failure.message) <= 500)


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
    (checked,) = await toolbox(schema).check_all([called(arguments)], None)
    assert getattr(checked, "kind", None) == kind
    if isinstance(checked, ParseFailure):
        assert len(checked.message) <= 500
        assert "\n" not in checked.message


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "no such type"},
        {"properties": 1},
        {"properties": {"x": {"$ref": "#/nowhere"}}},
        {"properties": {"x": {"pattern": "("}}},
        {"properties": {"x": {"multipleOf": float("nan")}}},
        nested("not", 100_000),
    ],
    ids=["type", "properties", "reference", "pattern", "factor", "100,000 levels"],
)
def test_parameters_without_schema_are_the_environments_fault(schema: dict[str, Any]):
    with pytest.raises(SessionError, match="tool `act`") as caught:
        toolbox(schema)
    assert len(str(caught.value)) <= 700


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


@pytest.mark.parametrize(
    ("arguments", "calls"),
    [({"x": list(range(5_000))}, 1), ({"x": list(range(100))}, 32)],
    ids=["one long check", "many short checks"],
)
async def test_checks_of_an_action_are_made_off_the_event_loop(arguments: dict[str, Any], calls: int) -> None:
    """A trace function of this thread sees every check that runs on it."""
    seen: list[str] = []
    tools = toolbox(field(items={"type": "integer", "minimum": 0}))
    before = sys.getprofile()
    sys.setprofile(lambda frame, event, _: seen.append(frame.f_code.co_name) if event == "call" else None)
    try:
        checked = await tools.check_all([called(arguments)] * calls, None)
    finally:
        sys.setprofile(before)
    assert checked == [called(arguments)] * calls
    assert "complaint" not in seen


PAIR = {"type": "array", "items": [{"type": "integer"}, {"type": "string"}]}  # a tuple, before draft 2020-12
POSITIVE = {"type": "integer", "minimum": 0, "exclusiveMinimum": True}
OLDER = [
    ("http://json-schema.org/draft-07/schema#", PAIR, [1, "a"], ["a", 1]),
    ("http://json-schema.org/draft-06/schema", PAIR, [1, "a"], ["a", 1]),
    ("http://json-schema.org/draft-04/schema#", POSITIVE, 1, 0),
]


@pytest.mark.parametrize(("draft", "schema", "good", "bad"), OLDER)
def test_draft_that_a_schema_names_is_obeyed(draft: str, schema: dict[str, Any], good: Any, bad: Any) -> None:
    tools = toolbox({"$schema": draft, **field(**schema)})
    assert tools.check(called({"x": good})) is None
    assert (failure := tools.check(called({"x": bad}))) is not None
    assert failure.kind is WRONG
    with pytest.raises(SessionError) as refused:
        toolbox({"$schema": "https://json-schema.org/draft/2020-12/schema", **field(**schema)})
    for named in ("`act`", "$.properties.x", "2020-12"):
        assert named in str(refused.value)
    assert str(refused.value).isprintable()


NULLABLE = [
    {"type": "string", "nullable": True},
    {"enum": ["red"], "nullable": True},
    {"$ref": "#/$defs/name", "nullable": True},
    {"allOf": [{"$ref": "#/$defs/name"}], "nullable": True},
    {"type": "object", "nullable": True, "properties": {"y": {"type": "string"}}},
]


@pytest.mark.parametrize("schema", NULLABLE)
def test_nullable_schema_accepts_null_and_no_more(schema: dict[str, Any]) -> None:
    defs = {"$defs": {"name": {"type": "string"}}}
    tools = toolbox({**field(**schema), **defs})
    assert tools.check(called({"x": None})) is None
    assert tools.check(called({"x": 7})) is not None
    assert toolbox({**field(**{**schema, "nullable": False}), **defs}).check(called({"x": None})) is not None


def test_nullable_that_is_no_keyword_changes_nothing() -> None:
    tools = toolbox({"type": "object", "properties": {"nullable": {"const": {"nullable": True}}}})
    assert tools.check(called({"nullable": {"nullable": True}})) is None
    assert tools.check(called({"nullable": None})) is not None
    through = {
        "x": {"nullable": True, "properties": {"y": {"type": "integer"}}},
        "z": {"$ref": "#/properties/x/properties/y"},
    }
    assert toolbox({"type": "object", "properties": through}).check(called({"z": 1})) is None
