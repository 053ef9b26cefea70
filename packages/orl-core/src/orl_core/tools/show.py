"""Show tools to a model as text: in the form that the chat templates of a tool format print, or in a system prompt.

The templates of the checkpoints are the source of each form, odd white space included: gpt-oss declares tools in
TypeScript, Gemma 4 in a notation like JSON. A model that has a chat template with tools needs none of
this: its template prints them.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, cast

from orl_core.messages import ToolCall
from orl_core.text import check_system_prompt
from orl_core.tools import ToolFormat, tool_format
from orl_core.tools.format import for_chat_template, for_system_prompt
from orl_core.tools.write import render_call

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from orl_core.messages import ToolSpec

    _Form = Callable[[list[dict[str, Any]]], str]

_EXAMPLE = ToolCall(name="tool_name", arguments={"argument_name": "value"})


def format_tools(tools: Sequence[ToolSpec], format: str = "hermes") -> str:  # noqa: A002
    """Return the list of tools as the chat templates of this tool format print it.

    `format` is the name of a tool format, or of a family of models, as for `parse`.

    Raises:
        RenderError: the format is unknown.
        TypeError: a tool is no ToolSpec.
    """
    return _FORMS[tool_format(format)](for_chat_template(tools))


def system_prompt(tools: Sequence[ToolSpec], format: str = "hermes", template: str | None = None) -> str:  # noqa: A002
    """Return a system prompt that shows the tools and how to call one, for a model whose chat template shows none.

    `template` is a text with `{tools}`, as the setting `system_prompt_template`: the tools are filled in as one JSON
    object a line, with the cookbook's keys `name`, `arguments_schema` and `description`; `format_tools` writes
    `parameters`, as chat templates do. None is a short text with `format_tools` and one call in the format.

    Raises:
        RenderError, TypeError: as `format_tools`.
        ValueError: the template does not hold `{tools}` alone.
    """
    if template is not None:
        check_system_prompt(template)
        return template.format(tools=for_system_prompt(tools))
    shown, example = format_tools(tools, format), render_call(_EXAMPLE, format)
    return (
        f"You can use these tools:\n\n{shown}\n\nTo call a tool, write its name and arguments like this:\n\n{example}"
    )


def _json(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _functions(specs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [spec["function"] for spec in specs]


def _lines(before: str, after: str, *, bare: bool = False, around: tuple[str, str] = ("", "")) -> _Form:
    """Return the form of one JSON object a line; `bare` leaves out the wrapper of type `function`."""

    def show(specs: list[dict[str, Any]]) -> str:
        lines = (f"{around[0]}{_json(spec)}{around[1]}\n" for spec in (_functions(specs) if bare else specs))
        return f"{before}{''.join(lines)}{after}"

    return show


def _array(before: str, after: str, *, bare: bool = False) -> _Form:
    """Return the form of one JSON array."""
    return lambda specs: f"{before}{_json(_functions(specs) if bare else specs)}{after}"


def _paragraphs(specs: list[dict[str, Any]]) -> str:
    return "\n\n".join(_json(spec, indent=4) for spec in specs)


def _kimi_k3(specs: list[dict[str, Any]]) -> str:
    return json.dumps(specs, ensure_ascii=False, sort_keys=True, separators=(",", ":"))


_SCALARS = {"string": "string", "number": "number", "integer": "number", "boolean": "boolean", "object": "object"}
_INDENT = "\n" + " " * 16  # what the template prints before the type of a member


def _typescript(functions: Sequence[dict[str, Any]]) -> str:
    """Return the namespace that gpt-oss reads."""
    return "namespace functions {\n\n" + "".join(map(_function, functions)) + "} // namespace functions"


def _function(function: Mapping[str, Any]) -> str:
    parameters: dict[str, Any] = function["parameters"] or {}
    properties: dict[str, Any] = parameters.get("properties") or {}
    lines: list[str] = []
    for name, spec in properties.items():
        comment = f"// {spec['description']}\n" if spec.get("description") else ""
        lines.append(f"{comment}{_named(name, parameters)}: {_type(spec)},\n")
    taken = f"_: {{\n{''.join(lines)}}}" if lines else ""
    return f"// {function['description']}\ntype {function['name']} = ({taken}) => any;\n\n"


def _named(name: str, parent: Mapping[str, Any]) -> str:
    return name if name in (parent.get("required") or ()) else f"{name}?"


def _type(spec: Mapping[str, Any]) -> str:
    """Return the TypeScript type of a schema."""
    match kind := spec.get("type"):
        case "array":
            return f"{_elements(spec.get('items'))}[]"
        case "string" if spec.get("enum"):
            return '"' + '" | "'.join(map(str, spec["enum"])) + '"'
        case "object" if spec.get("properties"):
            members = (f"{_named(name, spec)}: {_INDENT}{_type(one)}" for name, one in spec["properties"].items())
            return "{\n" + ", ".join(members) + "}"
        case _:
            return _SCALARS.get(str(kind), "any")


def _elements(items: Any) -> str:
    if not items:
        return "any"
    if (scalar := items.get("type")) in ("string", "number", "integer", "boolean"):
        return _SCALARS[scalar]
    inner = _type(items)
    return "any" if inner == "object | object" or len(inner) > 50 else inner


def _gemma4(functions: Sequence[dict[str, Any]]) -> str:
    """Return the declarations that Gemma 4 reads."""
    return "".join(f"<|tool>{_gemma_declaration(function)}<tool|>" for function in functions)


def _gemma_declaration(function: Mapping[str, Any]) -> str:
    parameters, parts = function["parameters"], [f"description:{_gemma_text(function['description'])}"]
    if parameters:
        inner = ",".join(f"{name}:{written}" for name, written in _gemma_schema(parameters))
        parts.append(f"parameters:{{{inner}}}")
    return f"declaration:{function['name']}{{{','.join(parts)}}}"


def _gemma_schema(spec: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the members and the type of an object's schema."""
    if spec.get("properties"):
        yield "properties", _gemma_properties(spec["properties"])
    if spec.get("required"):
        yield "required", _gemma_value(spec["required"])
    if spec.get("type"):
        yield "type", _gemma_text(str(spec["type"]).upper())


def _gemma_properties(properties: Mapping[str, Any]) -> str:
    return "{" + ",".join(f"{name}:{{{_gemma_property(spec)}}}" for name, spec in _sorted(properties)) + "}"


def _gemma_property(spec: Mapping[str, Any]) -> str:
    kind = str(spec.get("type", "")).upper()
    parts = [f"description:{_gemma_text(spec['description'])}"] if spec.get("description") else []
    if kind == "STRING" and spec.get("enum"):
        parts.append(f"enum:{_gemma_value(spec['enum'])}")
    if kind == "ARRAY" and isinstance(spec.get("items"), dict) and spec["items"]:
        members = (f"{name}:{_gemma_item(name, value)}" for name, value in _sorted(spec["items"]) if value is not None)
        parts.append(f"items:{{{','.join(members)}}}")
    if kind == "OBJECT":
        parts.append(f"properties:{_gemma_properties(spec.get('properties', {}))}")
        if spec.get("required"):
            parts.append(f"required:{_gemma_value(spec['required'])}")
    return ",".join([*parts, f"type:{_gemma_text(kind)}"])


def _gemma_item(name: str, value: Any) -> str:
    """Return a member of the schema of an array's elements."""
    if name == "properties":
        return _gemma_properties(value)
    if name == "type":
        return _gemma_value(value.upper() if isinstance(value, str) else [kind.upper() for kind in value])
    return _gemma_value(value)


def _gemma_value(value: Any) -> str:
    match value:
        case str():
            return _gemma_text(value)
        case dict():
            return (
                "{"
                + ",".join(
                    f"{_gemma_text(name)}:{_gemma_value(member)}"
                    for name, member in _sorted(cast("dict[str, Any]", value))
                )
                + "}"
            )
        case list() | tuple():
            return f"[{','.join(map(_gemma_value, cast('list[Any]', value)))}]"
        case _:
            return json.dumps(value)


def _gemma_text(text: str) -> str:
    return f'<|"|>{text}<|"|>'


def _sorted(members: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Return members in the order of Jinja's `dictsort`."""
    return sorted(members.items(), key=lambda member: member[0].lower())


_TOOLS = _lines("<tools>\n", "</tools>")
_TAGGED = _lines("<tools>\n", "</tools>", bare=True, around=("<tool>", "</tool>"))
_FORMS: Mapping[ToolFormat, _Form] = {
    **dict.fromkeys(("hermes", "qwen3_coder", "glm45", "minimax_m1", "hy3", "hy3_preview"), _TOOLS),
    **dict.fromkeys(("minimax", "minimax_m3"), _TAGGED),
    **dict.fromkeys(("llama3", "json_array"), _paragraphs),
    "mistral": _array("[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]"),
    "deepseek": _lines("<functions>\n", "</functions>", bare=True),
    "kimi_k2": _array("", ""),
    "kimi_k3": _kimi_k3,
    "pythonic": _array("<|tool_list_start|>", "<|tool_list_end|>"),
    "lfm2_5": _array("", ""),
    "cohere": _array("```json\n", "\n```", bare=True),
    "olmo3": _array("<functions>", "</functions>", bare=True),
    "seed_oss": _array("Tool List:\n", ""),
    "gpt_oss": lambda specs: _typescript(_functions(specs)),
    "gemma4": lambda specs: _gemma4(_functions(specs)),
    "opened_array": _array("<AVAILABLE_TOOLS>", "</AVAILABLE_TOOLS>", bare=True),
}
