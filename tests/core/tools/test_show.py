"""Tools as text: the form is that of published chat templates, and a prompt teaches the format that it names."""

from __future__ import annotations

import importlib.util
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from orl_core import ToolSpec, format_tools, parse, system_prompt
from orl_core.render.taught import taught_format
from orl_core.tools import TOOL_FORMATS, ToolFormat
from orl_core.tools.format import for_chat_template
from transformers.utils.chat_template_utils import _compile_jinja_template  # pyright: ignore[reportPrivateUsage]

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


def published(name: str) -> str:
    """Return the text of a chat template that TRL ships."""
    spec = importlib.util.find_spec("trl")
    assert spec is not None
    assert spec.origin is not None
    return (Path(spec.origin).parent / "chat_templates" / f"{name}.jinja").read_text(encoding="utf-8")


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
def test_form_is_that_of_the_published_template(tool_format: ToolFormat, template: str) -> None:
    messages = [{"role": "system", "content": "S"}, {"role": "user", "content": "U"}]
    compiled = _compile_jinja_template(published(template))
    rendered = compiled.render(messages=messages, tools=for_chat_template(TOOLS), bos_token="", eos_token="")
    assert format_tools(TOOLS, tool_format) in rendered


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
@given(parameters=PARAMETERS)
def test_declarations_are_those_of_the_template(tool_format: ToolFormat, template: str, parameters: Any) -> None:
    tools = (ToolSpec(name="look", description="Look at a place.", parameters=parameters), TOOLS[1])
    compiled = compiled_template(template)
    messages = [{"role": "user", "content": "U"}]
    rendered = compiled.render(messages=messages, tools=for_chat_template(tools), bos_token="", eos_token="")
    assert format_tools(tools, tool_format) in rendered


@cache
def compiled_template(name: str) -> Any:
    """Return a chat template that TRL ships, compiled once."""
    return _compile_jinja_template(published(name))
