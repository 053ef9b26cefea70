"""Tools of a hostile environment, and arguments of a hostile model: what must be judged in bounded time."""

from __future__ import annotations

from typing import Any

from orl_core.errors import SessionError
from orl_core.messages import FailureKind, ToolCall, ToolSpec

Verdict = FailureKind | type[SessionError] | None
WRONG = FailureKind.INVALID_ARGUMENTS


def nested(key: str, levels: int, inner: Any = None, **more: Any) -> dict[str, Any]:
    """`key` inside `key`, so many levels deep."""
    value: dict[str, Any] = {} if inner is None else inner
    for _ in range(levels):
        value = {key: value, **more}
    return value


def doubling(levels: int, applicator: str = "allOf") -> dict[str, Any]:
    """Two references to the next level on each level: 2**levels ways."""
    steps = {
        f"a{n}": {applicator: [{"$ref": f"#/$defs/a{n + 1}"}, {"$ref": f"#/$defs/a{n + 1}"}]} for n in range(levels)
    }
    return {"$defs": {**steps, f"a{levels}": {"type": "object"}}, "$ref": "#/$defs/a0"}


def field(**schema: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"x": schema}}


TREE = {"type": "object", "properties": {"x": {"$ref": "#"}}}
BOTH_WAYS = {"properties": {"x": {"allOf": [{"$ref": "#"}, {"$ref": "#"}]}}}

# A name, the schema, the arguments, and what comes of them.
SCHEMAS: list[tuple[str, Any, dict[str, Any], Verdict]] = [
    ("refers to itself", {"$ref": "#"}, {}, SessionError),
    ("refers to itself through not", {"not": {"$ref": "#"}}, {}, SessionError),
    ("refers to itself through anyOf", {"anyOf": [{"$ref": "#"}, {"$ref": "#"}]}, {}, SessionError),
    ("refers to itself dynamically", {"$dynamicAnchor": "a", "not": {"$dynamicRef": "#a"}}, {}, SessionError),
    ("refers to itself unevaluated", {"unevaluatedProperties": False, "$ref": "#"}, {}, SessionError),
    ("refers to a name within", {"$ref": "#name", "$defs": {"a": {"$anchor": "name", "not": {}}}}, {}, WRONG),
    ("refers to nothing", {"$ref": "#/nowhere"}, {}, SessionError),
    ("refers to a bad address", {"$ref": "http://[bad"}, {}, SessionError),
    ("doubles 25 times", doubling(25), {}, SessionError),
    ("doubles 25 times in oneOf", doubling(25, "oneOf"), {}, SessionError),
    ("doubles with the arguments", BOTH_WAYS, nested("x", 40), WRONG),
    ("nested 100 levels", nested("not", 100), {}, SessionError),
    ("nested 100,000 levels", nested("not", 100_000), {}, SessionError),
    ("unevaluated 30 levels deep", nested("not", 30, unevaluatedProperties=False), {"y": 1}, None),
    ("6,000 properties", {"properties": {f"p{n}": {"type": "string"} for n in range(6_000)}}, {"p1": 1}, WRONG),
    ("a million properties", {"properties": {f"p{n}": {} for n in range(1_000_000)}}, {}, SessionError),
    ("a description of 100 MB", {"description": "x" * 100_000_000}, {}, SessionError),
    ("an enum of 9,000", field(enum=[[n] for n in range(9_000)]), {"x": [-1]}, WRONG),
    ("an enum against 1,000 values", field(items={"enum": [[n] for n in range(9_000)]}), {"x": [[-1]] * 999}, WRONG),
    ("a catastrophic pattern", field(pattern="^(a+)+$"), {"x": "a" * 50 + "!"}, WRONG),
    ("a catastrophic property", {"patternProperties": {"^(a|a)*$": {}}}, {"a" * 50 + "!": 1}, None),
    ("a pattern too large", field(pattern="a{99999999999}"), {"x": "b"}, None),
    ("a pattern of patterns", field(pattern="((a{0,100}){0,100}){0,100}"), {"x": "b"}, None),
    ("a pattern of 1 MB", field(pattern="a|" * 500_000), {"x": "b"}, None),
    ("a pattern of many states", field(pattern="(a|b)*a(a|b){4000}c"), {"x": "ab" * 6_000}, None),
    ("a pattern nested too deep", field(pattern="(" * 900 + ")" * 900), {"x": "b"}, None),
    ("a pattern that looks back", field(pattern=r"(a)\1(?=b)"), {"x": "b"}, None),
    ("no pattern", field(pattern="("), {"x": "b"}, None),
    ("1,000 patterns", {"patternProperties": {f"{n}[a-z]{{900}}": {} for n in range(1_000)}}, {"x": 1}, SessionError),
    (
        "another dialect inside",
        field(**{"$schema": "http://json-schema.org/draft-07/schema#", "not": {}}),
        {"x": 1},
        WRONG,
    ),
    ("another dialect elsewhere", {"$schema": "http://127.0.0.1:1/x"}, {}, None),
    ("a factor of nothing", field(multipleOf=float("nan")), {"x": 1}, SessionError),
    ("a lone surrogate", {"properties": {"\ud800": {"type": "string"}}}, {}, None),
    ("a number for a schema", {"properties": {"x": 3}}, {}, SessionError),
    ("a type of 1 MB", {"type": "x" * 1_000_000}, {}, SessionError),
]

# Arguments of a model, and a benign schema.
ARGUMENTS: list[tuple[str, Any, dict[str, Any], Verdict]] = [
    ("a huge number, a fraction", field(multipleOf=0.01), {"x": 10**400}, None),
    ("a huge number, no fraction", field(multipleOf=0.75), {"x": 10**400 + 1}, WRONG),
    ("a huge number, a factor", field(multipleOf=7), {"x": 10**400}, WRONG),
    ("a small number, a huge factor", field(multipleOf=10**400), {"x": 0.5}, WRONG),
    ("a huge number for a text", field(type="string"), {"x": 10**4_000}, WRONG),
    ("a number beyond its digits", field(type="string"), {"x": 1 << 2_000_000}, WRONG),
    ("a huge number as a number", field(type="integer", minimum=1.5), {"x": 10**400}, None),
    ("60 levels", TREE, nested("x", 60), WRONG),
    ("100,000 levels", TREE, nested("x", 100_000), WRONG),
    ("100,000 items", field(uniqueItems=True), {"x": list(range(100_000))}, WRONG),
    ("15,000 items", field(uniqueItems=True), {"x": list(range(15_000))}, None),
    ("6,000 objects that do not sort", field(uniqueItems=True), {"x": [{"a": n} for n in range(6_000)]}, None),
    ("numbers of one hash", field(uniqueItems=True), {"x": [n * (2**61 - 1) for n in range(9_000)]}, None),
    ("one and 1.0", field(uniqueItems=True), {"x": [1, 1.0]}, WRONG),
    ("one and true", field(uniqueItems=True), {"x": [1, True]}, None),
    ("wrong items", field(items={"type": "string"}), {"x": list(range(15_000))}, WRONG),
    ("a text of 10 MB", field(type="integer"), {"x": "a" * 10_000_000}, WRONG),
    ("a text of 1 MB", field(type="integer"), {"x": "a" * 1_000_000}, WRONG),
    ("a key of 1 MB", {"additionalProperties": False}, {"a" * 1_000_000: 1}, WRONG),
    ("a text for a pattern", field(pattern=r"^(\w+\s?)*$"), {"x": "a" * 30_000 + "!"}, WRONG),
    ("a text too long for a pattern", field(pattern=r"^(\w+\s?)*$"), {"x": "a" * 1_000_000 + "!"}, None),
    ("a lone surrogate", field(pattern="^a$"), {"x": "\ud800"}, WRONG),
    ("9,000 properties", {"additionalProperties": False}, {f"p{n}": n for n in range(9_000)}, WRONG),
]


def tool(schema: Any, name: str = "act") -> ToolSpec:
    return ToolSpec(name=name, parameters=schema)


def called(arguments: dict[str, Any]) -> ToolCall:
    return ToolCall(name="act", arguments=arguments)
