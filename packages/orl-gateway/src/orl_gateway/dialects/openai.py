"""Shared by OpenAI's two APIs: function tools, `tool_choice`, and errors."""

from __future__ import annotations

from typing import Any, cast

from orl_core.errors import boundary
from orl_core.messages import ToolSpec

from orl_gateway.dialects.client_api import Fields
from orl_gateway.dialects.exchange import RequestRefused, unsupported

KEEPALIVE = b": keepalive\n\n"


class OpenAIFields(Fields, kw_only=True):
    """Fields of both APIs."""

    tool_choice: Any = "auto"
    parallel_tool_calls: bool = True

    def choice(self) -> dict[str, Any]:
        """Read `tool_choice`: a word, a function that must be called, or a list of the tools that may be called."""
        choice = self.tool_choice
        fields = cast("dict[str, Any]", choice) if isinstance(choice, dict) else {"type": choice}
        match fields:
            case {"type": "auto" | "none" | "required" as word}:
                return {"allows_calls": word != "none", "demand": "" if word == "required" else None}
            case {"type": "function", "function": {"name": str(name)}} | {"type": "function", "name": str(name)}:
                return {"demand": name}
            case {"type": "allowed_tools"}:
                return _allowed(fields.get("allowed_tools", fields))
            case _:
                raise unsupported(f"`tool_choice`: {choice!r:.80}", "send `auto`")


def function_tool(tool: dict[str, Any], function: object) -> ToolSpec:
    """Return a tool with the name, description and parameters in `function`.

    `strict` promises decoding under the schema, which would sample from another policy: it changes nothing here.
    """
    kind = tool.get("type", "function")
    if kind != "function":
        raise unsupported(f"a tool of type `{kind}`")
    if not isinstance(function, dict):
        raise RequestRefused("a tool has no object `function`: put its name and its parameters there")
    return tool_spec(cast("dict[str, Any]", function), "parameters")


def tool_spec(fields: dict[str, Any], schema: str) -> ToolSpec:
    """Return the tool of `fields`; `schema` names the field of its parameters."""
    name: object = fields.get("name")
    parameters: object = fields.get(schema) or {"type": "object", "properties": {}}
    if not isinstance(name, str) or not name:
        raise RequestRefused("a tool has no name")
    if not isinstance(parameters, dict):
        raise RequestRefused(f"tool `{name}`: `{schema}` is no object")
    return ToolSpec(
        name=name, description=str(fields.get("description") or ""), parameters=cast("dict[str, Any]", parameters)
    )


def _allowed(fields: Any) -> dict[str, Any]:
    """Return the choice of a list of tools, each a function with its name, and `mode`."""
    with boundary(RequestRefused, "reading `tool_choice`"):
        names = frozenset(tool.get("function", tool)["name"] for tool in fields["tools"])
    return {"demand": "" if fields.get("mode") == "required" else None, "allowed": names}


def error(refusal: RequestRefused) -> dict[str, Any]:
    """Return the body of an error."""
    kind = "invalid_request_error"
    if refusal.status >= 500:
        kind = "server_error"
    elif refusal.status == 401:
        kind = "authentication_error"
    return {"error": {"message": str(refusal), "type": kind, "param": None, "code": refusal.code}}
