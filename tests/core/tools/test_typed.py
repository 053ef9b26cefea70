"""Arguments that a format carries as texts: the types that schemas give them, rule by rule."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from orl_core.messages import ToolSpec
from orl_core.tools import parse

from tests.kit.strategies import json_values


def read(text: str, schema: Any, root: dict[str, Any] | None = None) -> Any:
    """Return what the text of parameter `x` becomes under its schema."""
    tool = ToolSpec(name="f", parameters={"type": "object", "properties": {"x": schema}, **(root or {})})
    action = parse(f"<tool_call>f<arg_key>x</arg_key><arg_value>{text}</arg_value></tool_call>", "glm45", tools=[tool])
    (call,) = action.calls
    return call.arguments["x"]  # type: ignore[union-attr]


TREE = {"anyOf": [{"type": "object"}, {"$ref": "#/$defs/Tree"}, {"type": "null"}]}
RULES: list[tuple[str, Any, Any]] = [
    # strings stay as they are
    ("1", {"type": "string"}, "1"),
    (' "a" ', {"type": "string"}, ' "a" '),
    # numbers
    ("5", {"type": "integer"}, 5),
    (" -5\n", {"type": "integer"}, -5),
    ("5.0", {"type": "integer"}, 5),
    ("1e3", {"type": "integer"}, 1000),
    ("5.5", {"type": "integer"}, "5.5"),
    ("5,5", {"type": "number"}, "5,5"),
    ('"5"', {"type": "integer"}, '"5"'),
    ("9" * 5000, {"type": "integer"}, "9" * 5000),
    ("5.0", {"type": "number"}, 5.0),
    ("5", {"type": "number"}, 5),
    ("1e999", {"type": "number"}, "1e999"),
    # booleans and null, in JSON's words and Python's
    ("true", {"type": "boolean"}, True),
    ("True", {"type": "boolean"}, True),
    ("1", {"type": "boolean"}, "1"),
    ("null", {"type": "null"}, None),
    ("None", {"type": "null"}, None),
    # objects and arrays: strict JSON, typed by itself
    ('{"a": ["1", 1]}', {"type": "object"}, {"a": ["1", 1]}),
    ("{'a': 1}", {"type": ["object", "string"]}, "{'a': 1}"),
    # in Python's spelling, if no string is allowed
    ("{'a': [True, None, 2.0]}", {"type": "object"}, {"a": [True, None, 2.0]}),
    (" ['it\\'s', {}] ", {"type": "array"}, ["it's", {}]),
    ("{'a': 1} and more", {"type": "object"}, "{'a': 1} and more"),
    ('{"a": 1, "a": 2}', {"type": "object"}, '{"a": 1, "a": 2}'),
    ("[1] and more", {"type": "array"}, "[1] and more"),
    ("[" * 100 + "]" * 100, {"type": "array"}, "[" * 100 + "]" * 100),
    # unions: another type than string where the text is one, a string otherwise
    ("5", {"type": ["integer", "string"]}, 5),
    ("null", {"anyOf": [{"type": "string"}, {"type": "null"}]}, None),
    ("None", {"anyOf": [{"type": "string"}, {"type": "null"}]}, "None"),
    ('"a"', {"anyOf": [{"type": "string"}, {"type": "null"}]}, '"a"'),
    ("3", {"oneOf": [{"type": "boolean"}, {"type": "number"}]}, 3),
    ("null", {"type": "integer", "nullable": True}, None),
    ("5", {"allOf": [{"$ref": "#/$defs/Five"}]}, 5),
    # enum and const
    ("1", {"enum": ["1", 1]}, "1"),
    ("1", {"type": "string", "enum": ["1"]}, "1"),
    ("1", {"enum": [1, 2]}, 1),
    ("true", {"const": True}, True),
    ("a", {"enum": [1]}, "a"),
    # references, also round ones
    ('{"a": 1}', {"$ref": "#/$defs/Tree"}, {"a": 1}),
    ("5", {"$ref": "#/$defs/a~1b"}, 5),
    ("5", {"$ref": "#/$defs/Lost"}, 5),
    ("five", {"$ref": "https://example.org/x"}, "five"),
    # nothing said: everything is allowed
    ("5", {}, 5),
    ("5", True, 5),
    # not a schema at all
    ("5", {"type": 7, "enum": 3, "anyOf": {}, "$ref": []}, 5),
]


@pytest.mark.parametrize(("text", "schema", "expected"), RULES, ids=lambda value: json.dumps(value)[:40])
def test_rule(text: str, schema: Any, expected: Any) -> None:
    root = {"$defs": {"Five": {"type": "integer"}, "Tree": TREE, "a/b": {"type": "integer"}}}
    assert repr(read(text, schema, root)) == repr(expected)


@pytest.mark.parametrize(
    ("text", "schema", "expected"),
    [
        ("None", {"type": ["string", "null"]}, None),
        ("null", {"type": ["string", "null"]}, None),
        ("None", {"type": "string"}, "None"),
        ("None", {"type": ["string", "null"], "enum": ["None", None]}, "None"),
        (" None", {"type": ["string", "null"]}, " None"),
    ],
)
def test_none_is_null_where_a_template_prints_python(text: str, schema: Any, expected: Any) -> None:
    tool = ToolSpec(name="f", parameters={"type": "object", "properties": {"x": schema}})
    call = f"<seed:tool_call><function=f><parameter=x>{text}</parameter></function></seed:tool_call>"
    assert parse(call, "seed_oss", tools=[tool]).calls[0].arguments == {"x": expected}  # type: ignore[union-attr]


def test_parameters_are_found_in_every_branch_of_a_tools_schema() -> None:
    branch = {"properties": {"x": {"type": "string"}}}
    for root in ({"allOf": [branch]}, {"anyOf": [{}, branch]}, {"$ref": "#/$defs/R", "$defs": {"R": branch}}):
        tool = ToolSpec(name="f", parameters=root)
        text = "<tool_call>f<arg_key>x</arg_key><arg_value>1</arg_value></tool_call>"
        assert parse(text, "glm45", tools=[tool]).calls[0].arguments == {"x": "1"}  # type: ignore[union-attr]


def test_additional_properties_speak_for_unknown_parameters() -> None:
    assert read("1", {}, {"properties": {}, "additionalProperties": {"type": "string"}}) == "1"
    assert read("1", {}, {"properties": {}, "additionalProperties": False}) == 1


def test_formats_with_types_of_their_own_are_left_alone() -> None:
    tool = ToolSpec(name="f", parameters={"type": "object", "properties": {"x": {"type": "integer"}}})
    text = '<tool_call>{"name": "f", "arguments": {"x": "1"}}</tool_call>'
    assert parse(text, "hermes", tools=[tool]).calls[0].arguments == {"x": "1"}  # type: ignore[union-attr]


KEYWORDS = ("type", "enum", "const", "anyOf", "allOf", "oneOf", "$ref", "nullable", "properties")
schemas = st.recursive(
    json_values | st.sampled_from(["string", "integer", "#", "#/properties/x"]),
    lambda children: st.lists(children, max_size=3) | st.dictionaries(st.sampled_from(KEYWORDS), children, max_size=3),
    max_leaves=10,
)


@given(st.dictionaries(st.sampled_from(KEYWORDS), schemas), json_values.map(json.dumps) | st.text(max_size=5))
@example({"$ref": "#/properties/x"}, "1")
@example({"anyOf": [{"$ref": "#/properties/x"}] * 9}, "1")
def test_any_schema_gives_a_value_or_the_text(schema: dict[str, Any], text: str) -> None:
    if "<" not in text:
        value = read(text, schema)
        assert value == text or not isinstance(value, str)


def test_schema_that_branches_without_end_is_followed_fast() -> None:
    defs: dict[str, Any] = {f"D{n}": {"anyOf": [{"$ref": f"#/$defs/D{n + 1}"}] * 4} for n in range(200)}
    assert read("1", {"$ref": "#/$defs/D0"}, {"$defs": defs}) == 1
