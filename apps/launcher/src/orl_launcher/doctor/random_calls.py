"""Calls with random arguments that fit the schema of a tool: they play any environment without a model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Mapping

WIDTH = 100  # of the range of a number that has no upper end


def arguments_for(schema: Mapping[str, Any], rng: random.Random) -> dict[str, Any]:
    """Return a value for each argument that a tool requires. The tool may refuse them, which is an answer too."""
    properties: Mapping[str, Mapping[str, Any]] = schema.get("properties", {})
    return {name: _value(properties.get(name, {}), rng) for name in schema.get("required", ())}


def _value(schema: Mapping[str, Any], rng: random.Random) -> Any:
    """Return a value of the schema's type. What it demands of a text is not obeyed."""
    low = schema.get("minimum", 0)
    high = schema.get("maximum", low + WIDTH)
    values: dict[str, Callable[[], Any]] = {
        "integer": lambda: rng.randint(int(low), int(high)),
        "number": lambda: rng.uniform(low, high),
        "boolean": lambda: rng.random() < 0.5,
        "array": lambda: [_value(schema.get("items", {}), rng)],
        "object": lambda: arguments_for(schema, rng),
    }
    if "enum" in schema or "const" in schema:
        return rng.choice(schema.get("enum", [schema.get("const")]))
    return values.get(str(schema.get("type")), lambda: "test")()
