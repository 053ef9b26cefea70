"""Tools as text: the form is that of published chat templates, and a prompt teaches the format that it names."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from orl_core import RenderError, ToolSpec, format_tools, parse, system_prompt
from orl_core.tools import TOOL_FORMATS, ToolFormat
from orl_core.tools.format import for_chat_template
from orl_core.tools.taught import taught_format
from transformers.utils.chat_template_utils import _compile_jinja_template  # pyright: ignore[reportPrivateUsage]

UNWRITTEN = ("gpt_oss", "gemma4", "seed_oss")
WRITTEN = tuple(name for name in TOOL_FORMATS if name not in UNWRITTEN)
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


@pytest.mark.parametrize("tool_format", WRITTEN)
def test_every_tool_is_shown_once(tool_format: ToolFormat) -> None:
    shown = format_tools(TOOLS, tool_format)
    assert [shown.count(text) for text in ("look", "such as the café", "A place.", '"wait"')] == [1, 1, 1, 1]


@pytest.mark.parametrize("tool_format", WRITTEN)
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


@pytest.mark.parametrize("tool_format", UNWRITTEN)
def test_unwritten_form_is_refused_by_name(tool_format: ToolFormat) -> None:
    with pytest.raises(RenderError, match=tool_format):
        format_tools(TOOLS, tool_format)
