"""Tools as text: the form is that of published chat templates, and a prompt teaches the format that it names."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from orl_core import ToolSpec, format_tools, parse, system_prompt
from orl_core.tools import TOOL_FORMATS, ToolFormat, taught_format
from orl_core.tools.format import for_chat_template, for_system_prompt
from transformers.utils.chat_template_utils import _compile_jinja_template  # pyright: ignore[reportPrivateUsage]

from tests.kit.tokenizers import published_template

TOOLS = (
    ToolSpec(
        name="look",
        description="Look at a place, such as the café.",
        parameters={
            "type": "object",
            "properties": {"where": {"type": "string", "description": "A place."}, "count": {"type": "integer"}},
            "required": ["where"],
        },
    ),
    ToolSpec(name="wait", description="Wait.", parameters={"type": "object", "properties": {}}),
)


compiled = cache(lambda name: _compile_jinja_template(published_template(name)))


def rendered(name: str, tools: Sequence[ToolSpec]) -> str:
    """Return what a published chat template prints for these tools."""
    messages = [{"role": "system", "content": "S"}, {"role": "user", "content": "U"}]
    return compiled(name).render(messages=messages, tools=for_chat_template(tools), bos_token="", eos_token="")


@pytest.mark.parametrize(
    ("tool_format", "template"),
    [
        ("hermes", "qwen3"),
        ("qwen3_coder", "qwen3_5_think"),
        ("glm45", "glm4moe"),
        ("llama3", "llama3_1"),
        ("pythonic", "lfm2"),
        ("lfm2_5", "lfm2_2_5"),
    ],
)
@pytest.mark.published
def test_form_is_that_of_the_published_template(tool_format: ToolFormat, template: str) -> None:
    assert format_tools(TOOLS, tool_format) in rendered(template, TOOLS)


@pytest.mark.parametrize("tool_format", TOOL_FORMATS)
def test_every_tool_is_shown_once(tool_format: ToolFormat) -> None:
    shown = format_tools(TOOLS, tool_format)
    assert [shown.count(text) for text in ("look", "such as the café", "A place.", "Wait.")] == [1, 1, 1, 1]


@pytest.mark.parametrize("tool_format", TOOL_FORMATS)
def test_system_prompt_teaches_its_format(tool_format: ToolFormat) -> None:
    prompt = system_prompt(TOOLS, tool_format)
    assert format_tools(TOOLS, tool_format) in prompt
    assert taught_format(prompt) in (tool_format, None)
    (call,) = parse(prompt.rpartition("\n\n")[2], tool_format).calls
    assert call.name == "tool_name"


def test_template_is_filled_in_as_a_run_does() -> None:
    prompt = system_prompt(TOOLS, template="Tools:\n{tools}\nWrite {{}}.")
    assert prompt.startswith('Tools:\n{"name": "look", "arguments_schema": ')
    assert prompt.endswith("\nWrite {}.")
    with pytest.raises(ValueError, match="tools"):
        system_prompt(TOOLS, template="no place")


def schemas(depth: int) -> st.SearchStrategy[dict[str, Any]]:
    """Schemas of a parameter, as environments write them."""
    told = st.fixed_dictionaries({}, optional={"description": st.sampled_from(["A place.", "How far."])})
    scalar = st.sampled_from([{"type": "integer"}, {"type": "number"}, {"type": "boolean"}, {"type": "string"}])
    kinds = scalar | st.just({"type": "string", "enum": ["near", "far"]})
    if depth:
        inner = schemas(depth - 1)
        members = st.dictionaries(st.sampled_from(["x", "Y", "z"]), inner, max_size=2)
        kinds |= inner.map(lambda items: {"type": "array", "items": items})
        kinds |= members.map(lambda found: {"type": "object", "properties": found, "required": [*found][:1]})
    return st.builds(lambda kind, text: {**kind, **text}, kinds, told)


PARAMETERS = st.dictionaries(st.sampled_from(["where", "Count", "deep"]), schemas(2), max_size=3).map(
    lambda found: {"type": "object", "properties": found, "required": [*found][:1]}
)


@pytest.mark.parametrize(("tool_format", "template"), [("gpt_oss", "gptoss"), ("gemma4", "gemma4_v5")])
@pytest.mark.published
@given(parameters=PARAMETERS)
def test_declarations_are_those_of_the_template(tool_format: ToolFormat, template: str, parameters: Any) -> None:
    tools = (ToolSpec(name="look", description="Look at a place.", parameters=parameters), TOOLS[1])
    assert format_tools(tools, tool_format) in rendered(template, tools)


ASK = {"type": "object", "properties": {"z": {"type": "string"}, "a": {"type": "integer"}}, "required": ["z"]}
ASKED = (ToolSpec(name="ask", description="Ask, “politely”.", parameters=ASK), ToolSpec(name="wait"))


def test_for_a_chat_template() -> None:
    first, second = for_chat_template(ASKED)
    assert first == {
        "type": "function",
        "function": {"name": "ask", "description": "Ask, “politely”.", "parameters": ASK},
    }
    assert list(first["function"]) == ["name", "description", "parameters"]
    assert second["function"]["parameters"] == {"type": "object", "properties": {}}


def test_for_a_system_prompt_one_json_a_line_in_the_given_order() -> None:
    assert for_system_prompt(ASKED) == (
        '{"name": "ask", "arguments_schema": {"type": "object", "properties": {"z": {"type": "string"}, '
        '"a": {"type": "integer"}}, "required": ["z"]}, "description": "Ask, “politely”."}\n'
        '{"name": "wait", "arguments_schema": {"type": "object", "properties": {}}, "description": ""}'
    )
    assert for_system_prompt(()) == ""
