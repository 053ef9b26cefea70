"""Tools as a model reads them."""

from __future__ import annotations

from orl_core.messages import ToolSpec
from orl_core.tools.format import for_chat_template, for_system_prompt

SCHEMA = {"type": "object", "properties": {"z": {"type": "string"}, "a": {"type": "integer"}}, "required": ["z"]}
TOOLS = (ToolSpec(name="ask", description="Ask, “politely”.", parameters=SCHEMA), ToolSpec(name="wait"))


def test_for_a_chat_template() -> None:
    first, second = for_chat_template(TOOLS)
    assert first == {
        "type": "function",
        "function": {"name": "ask", "description": "Ask, “politely”.", "parameters": SCHEMA},
    }
    assert list(first["function"]) == ["name", "description", "parameters"]
    assert second["function"]["parameters"] == {"type": "object", "properties": {}}


def test_for_a_system_prompt_one_json_a_line_in_the_given_order() -> None:
    assert for_system_prompt(TOOLS) == (
        '{"name": "ask", "arguments_schema": {"type": "object", "properties": {"z": {"type": "string"}, '
        '"a": {"type": "integer"}}, "required": ["z"]}, "description": "Ask, “politely”."}\n'
        '{"name": "wait", "arguments_schema": {"type": "object", "properties": {}}, "description": ""}'
    )
    assert for_system_prompt(()) == ""
