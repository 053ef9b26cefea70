"""Lists of tools in languages of their own: gpt-oss declares them in TypeScript, Gemma 4 in a notation like JSON.

The chat templates of the checkpoints are the source, odd white space included.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_SCALARS = {"string": "string", "number": "number", "integer": "number", "boolean": "boolean", "object": "object"}
_SPACE = "\n" + " " * 16  # what the template prints before the type of a member


def typescript(functions: Sequence[dict[str, Any]]) -> str:
    """Return the namespace that gpt-oss reads."""
    return "namespace functions {\n\n" + "".join(map(_function, functions)) + "} // namespace functions"


def _function(function: Mapping[str, Any]) -> str:
    parameters: dict[str, Any] = function["parameters"] or {}
    properties: dict[str, Any] = parameters.get("properties") or {}
    lines: list[str] = []
    for name, spec in properties.items():
        told = f"// {spec['description']}\n" if spec.get("description") else ""
        lines.append(f"{told}{_named(name, parameters)}: {_type(spec)}{_default(spec)},\n")
    taken = f"_: {{\n{''.join(lines)}}}" if lines else ""
    return f"// {function['description']}\ntype {function['name']} = ({taken}) => any;\n\n"


def _named(name: str, parent: Mapping[str, Any]) -> str:
    return name if name in (parent.get("required") or ()) else f"{name}?"


def _type(spec: Mapping[str, Any]) -> str:
    """Return the TypeScript type of a schema."""
    kind, null = spec.get("type"), " | null" if spec.get("nullable") else ""
    match kind:
        case "array":
            return f"{_elements(spec.get('items'))}[]{null}"
        case [_, *_]:
            return " | ".join(kind)
        case _ if spec.get("oneOf"):
            return _variants(spec["oneOf"])
        case "string" if spec.get("enum"):
            return '"' + '" | "'.join(map(str, spec["enum"])) + '"'
        case "object" if spec.get("properties"):
            members = (f"{_named(name, spec)}: {_SPACE}{_type(one)}" for name, one in spec["properties"].items())
            return "{\n" + ", ".join(members) + "}"
        case _:
            return _SCALARS.get(str(kind), "any") + (null if kind == "string" else "")


def _elements(items: Any) -> str:
    if not items:
        return "any"
    if (scalar := items.get("type")) in ("string", "number", "integer", "boolean"):
        return _SCALARS[scalar]
    inner = _type(items)
    return "any" if inner == "object | object" or len(inner) > 50 else inner


def _variants(variants: Sequence[Mapping[str, Any]]) -> str:
    if len(variants) > 1 and any(variant.get("type") == "object" for variant in variants):
        return "any"
    return " | ".join(map(_type, variants))


def _default(spec: Mapping[str, Any]) -> str:
    if "default" not in spec:
        return ""
    comma = "" if spec.get("oneOf") and not spec.get("enum") else ", "
    value = spec["default"]
    return f"{comma}// default: {value if spec.get('enum') or spec.get('oneOf') else json.dumps(value)}"


def gemma4(functions: Sequence[dict[str, Any]]) -> str:
    """Return the declarations that Gemma 4 reads."""
    return "".join(f"<|tool>{_declaration(function)}<tool|>" for function in functions)


def _declaration(function: Mapping[str, Any]) -> str:
    parameters, parts = function["parameters"], [f"description:{_text(function['description'])}"]
    if parameters:
        inner = ",".join(f"{name}:{written}" for name, written in _schema(parameters))
        parts.append(f"parameters:{{{inner}}}")
    return f"declaration:{function['name']}{{{','.join(parts)}}}"


def _schema(spec: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the members and the type of an object's schema."""
    if spec.get("properties"):
        yield "properties", _properties(spec["properties"])
    if spec.get("required"):
        yield "required", _value(spec["required"])
    if spec.get("type"):
        yield "type", _text(str(spec["type"]).upper())


def _properties(properties: Mapping[str, Any]) -> str:
    return "{" + ",".join(f"{name}:{{{_property(spec)}}}" for name, spec in _sorted(properties)) + "}"


def _property(spec: Mapping[str, Any]) -> str:
    kind = str(spec.get("type", "")).upper()
    parts = [f"description:{_text(spec['description'])}"] if spec.get("description") else []
    if kind == "STRING" and spec.get("enum"):
        parts.append(f"enum:{_value(spec['enum'])}")
    if kind == "ARRAY" and isinstance(spec.get("items"), dict) and spec["items"]:
        members = (f"{name}:{_item(name, value)}" for name, value in _sorted(spec["items"]) if value is not None)
        parts.append(f"items:{{{','.join(members)}}}")
    if spec.get("nullable"):
        parts.append("nullable:true")
    if kind == "OBJECT":
        own = {name: value for name, value in spec.items() if name not in _STANDARD}
        parts.append(f"properties:{_properties(spec.get('properties', own))}")
        if spec.get("required"):
            parts.append(f"required:{_value(spec['required'])}")
    return ",".join([*parts, f"type:{_text(kind)}"])


_STANDARD = ("description", "type", "properties", "required", "nullable")


def _item(name: str, value: Any) -> str:
    """Return a member of the schema of an array's elements."""
    if name == "properties":
        return _properties(value)
    if name == "type":
        return _value(value.upper() if isinstance(value, str) else [kind.upper() for kind in value])
    return _value(value)


def _value(value: Any) -> str:
    match value:
        case str():
            return _text(value)
        case dict():
            return (
                "{"
                + ",".join(f"{_text(name)}:{_value(member)}" for name, member in _sorted(cast("dict[str, Any]", value)))
                + "}"
            )
        case list() | tuple():
            return f"[{','.join(map(_value, cast('list[Any]', value)))}]"
        case _:
            return json.dumps(value)


def _text(text: str) -> str:
    return f'<|"|>{text}<|"|>'


def _sorted(members: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Return members in the order of Jinja's `dictsort`."""
    return sorted(members.items(), key=lambda member: member[0].lower())
