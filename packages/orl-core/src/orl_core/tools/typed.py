"""Arguments that a wire format carries as texts, given the types that the tool's schema states.

It must not know wire formats. Here, and only here, a text becomes a number, a boolean, null, an object or an array; the
schema check that follows judges the result, and reports a text that fits nothing, because such a text stays a string.
The rules, the first that applies:

1. An unknown tool's arguments stay strings.
2. A text that is a string member of the schema's `enum` or `const` is that string.
3. Where only strings are allowed, a text stays as it is, whatever it looks like.
4. A text that is strict JSON (`strict_json`) of an allowed type other than string is that value; what it holds inside
   is typed by itself. A number without a fraction is an integer (`3.0`, `1e3`) where only integers are allowed.
5. Where no string is allowed, Python's `True`, `False`, `None`, lists and dicts count as well: chat templates that turn
   an argument into a text without `tojson` print them so.
6. Where null is allowed, `None` is null in a format whose template prints it so. Anything else stays a string.

Allowed are the types of `type` (one or several), of the members of `enum` and `const`, of any branch of `anyOf`,
`oneOf` and `allOf`, of what a local `$ref` names, and null with `nullable`. A schema that says nothing of these, an
unknown parameter's among them, allows everything. `additionalProperties` speaks for unknown parameters.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, cast

from msgspec import structs

from orl_core.messages import Action, ToolCall, ToolSpec
from orl_core.tools.python_literal import read_literal
from orl_core.tools.strict_json import NotJson, read_all, skip_space

_ALL = frozenset({"string", "integer", "number", "boolean", "null", "object", "array"})
_JSON_TYPES: dict[type[object], str] = {
    **{type(None): "null", bool: "boolean", str: "string", int: "integer", float: "number"},
    **{dict: "object", list: "array"},
}


def typed(action: Action, tools: Sequence[ToolSpec], *, python: bool = False) -> Action:
    """Give the arguments of the calls, all of them texts, the types that `tools` state. Total.

    `python`: a format whose template prints null as `None`, also if strings are allowed.
    """
    schemas = {tool.name: tool.parameters for tool in tools}
    calls = tuple(
        structs.replace(call, arguments=_Schema(schemas[call.name], python=python).arguments(call.arguments))
        if isinstance(call, ToolCall) and call.name in schemas
        else call
        for call in action.calls
    )
    return structs.replace(action, calls=calls)


def schema_of(value: Any) -> dict[str, Any]:
    """Return the schema that states the types of a value and of all that it holds."""
    schema: dict[str, Any] = {"type": _kind(value), "description": "A value."}
    if isinstance(value, dict):
        members = cast("dict[str, Any]", value)
        schema |= {"properties": {key: schema_of(member) for key, member in members.items()}, "required": [*members]}
    elif isinstance(value, list):
        schema["prefixItems"] = [schema_of(member) for member in cast("list[Any]", value)]
    return schema


class _Schema:
    """One tool's schema."""

    def __init__(self, root: Any, *, python: bool) -> None:
        self._root = root
        self._python = python

    def arguments(self, texts: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments as the schema types them."""
        return {name: self._value(text, self._parameter(name)) for name, text in texts.items()}

    def _parameter(self, name: str) -> Any:
        """Return the schema of one parameter, looked for in every branch of the tool's."""
        additional: Any = True
        for branch in self._branches(self._root):
            properties = branch.get("properties")
            if isinstance(properties, dict) and name in properties:
                return cast("dict[str, Any]", properties)[name]
            additional = branch.get("additionalProperties", additional)
        return additional

    def _value(self, text: str, schema: Any) -> Any:
        listed = [member for branch in self._branches(schema) for member in _listed(branch) or ()]
        allowed = self._types(schema)
        if allowed == frozenset({"string"}) or text in listed:
            return text
        if self._python and text == "None" and "null" in allowed:
            return None
        try:
            value = read_all(text)
        except NotJson:
            value = text if "string" in allowed else _python(text)
        if isinstance(value, float) and "number" not in allowed and value.is_integer():
            value = int(value)
        return value if _kind(value) in allowed and not isinstance(value, str) else text

    def _branches(self, schema: Any) -> Iterator[dict[str, Any]]:
        """Yield `schema` and every object schema that it refers to or combines, each once."""
        waiting, seen = [schema], set[int]()
        while waiting:
            part = waiting.pop()
            if not isinstance(part, dict) or id(cast("object", part)) in seen:
                continue
            branch = cast("dict[str, Any]", part)
            seen.add(id(branch))
            yield branch
            waiting.extend(part for key in ("oneOf", "anyOf", "allOf") for part in reversed(_list(branch.get(key))))
            if "$ref" in branch:
                waiting.append(self._named(branch["$ref"]))

    def _types(self, schema: Any) -> frozenset[str]:
        """Return the JSON types that a schema allows. If it allows `number`, it allows `integer`."""
        allowed = frozenset[str]()
        for branch in self._branches(schema):
            stated = _list(branch.get("type")) or [branch.get("type")]
            types = frozenset(name for name in stated if isinstance(name, str)) & _ALL
            types |= frozenset({"integer"}) if "number" in types else types
            if (listed := _listed(branch)) is not None:
                types = (types or _ALL) & frozenset(map(_kind, listed))
            allowed |= types | (frozenset({"null"}) if branch.get("nullable") is True else types)
        return allowed or _ALL

    def _named(self, reference: Any) -> Any:
        """Resolve a local reference (`#/$defs/Name`). One that names nothing is True: it allows everything."""
        if not isinstance(reference, str) or not reference.startswith("#"):
            return True
        value = self._root
        for part in reference[1:].split("/")[1:]:
            key = part.replace("~1", "/").replace("~0", "~")
            if not isinstance(value, dict) or key not in value:
                return True
            value = cast("dict[str, Any]", value)[key]
        return value


def _python(text: str) -> Any:
    """Return the boolean, None, list or dict that `text` spells in Python, or `text` itself."""
    try:
        value, end = read_literal(text, 0)
    except NotJson:
        return text
    whole = skip_space(text, end) == len(text)
    return cast("Any", value) if whole and isinstance(value, bool | list | dict | None) else text


def _listed(schema: dict[str, Any]) -> list[Any] | None:
    """Return the members of `enum`, or the one of `const`; None if there is neither."""
    return [schema["const"]] if "const" in schema else _list(schema["enum"]) if "enum" in schema else None


def _list(value: Any) -> list[Any]:
    return cast("list[Any]", value) if isinstance(value, list) else []


def _kind(value: Any) -> str:
    """Return the JSON type of a value, an integer being one even where numbers are allowed."""
    return _JSON_TYPES.get(cast("type[object]", type(value)), "array")
