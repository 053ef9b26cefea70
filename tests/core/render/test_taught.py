"""A system prompt that teaches a format of calls: the format is found, certified, and read in ids."""

from __future__ import annotations

import re
from copy import copy
from functools import cache

import pytest
from orl_core.config import RunConfig
from orl_core.errors import RenderError
from orl_core.messages import Message, ToolCall, ToolSpec, text_message
from orl_core.render import Renderer
from orl_core.render.call_check import unsupported
from orl_core.text import check_system_prompt
from orl_core.tools import taught_format
from orl_rollout.tokenizer.tokenizer import HFTokenizer

from tests.core.tools.wire import WIRES
from tests.kit.families import FAMILIES, rows, tokenizer
from tests.kit.tokenizers import QWEN3_ADDED, build, template

TEACHES = 'Tools:\n{tools}\nTo call one:\n<tool_call>\n{{"name": <name>, "arguments": <object>}}\n</tool_call>'
SAID = 'So. <tool_call>\n{"name": "look", "arguments": {"at": 1.0, "text": "</tool_call>"}}\n</tool_call>'
CALLS = (ToolCall(name="look", arguments={"at": 1.0, "text": "</tool_call>"}),)
NO_SYSTEM_MESSAGE = ("mistral_v0_3", "mistral_nemo")  # their templates move it behind later messages
# Formats without delimiters of their own, or with the opening of another format.
STATED_ONLY = {"llama3", "gpt_oss", "pythonic", "json_array", "lfm2_5"}


@cache
def taught(name: str) -> Renderer:
    return Renderer(tokenizer(name), system_prompt_template=TEACHES)


def qwen(source: str) -> HFTokenizer:
    hf = copy(build(template("qwen3"), QWEN3_ADDED))
    hf.chat_template = source
    return HFTokenizer(hf)


@pytest.mark.parametrize("name", rows(sorted(FAMILIES.keys() - set(NO_SYSTEM_MESSAGE))))
def test_taught_hermes_is_read_by_every_family(name: str) -> None:
    made, tok = taught(name), tokenizer(name)
    assert made.tool_format == "hermes"
    assert made.certificate.passed
    assert any("`hermes`" in note and f"`{FAMILIES[name].tool_format}`" in note for note in notes(made))
    opening, closing = made.thinking
    thought = f"{'' if made.opens('user') else opening}Hm, <tool_call>.{closing}"
    action = made.parse(tok.encode_joint(thought + SAID))
    assert (action.calls, action.text, action.reasoning) == (CALLS, "So.", "Hm, <tool_call>.")
    if not made.opens("user"):
        action = made.parse(tok.encode_joint(SAID))
        assert (action.calls, action.text, action.reasoning) == (CALLS, "So.", "")


def notes(made: Renderer) -> tuple[str, ...]:
    return made.certificate.notes


@pytest.mark.parametrize("name", NO_SYSTEM_MESSAGE)
def test_template_without_system_message_cannot_teach(name: str) -> None:
    with pytest.raises(RenderError, match="system_prompt_template"):
        taught(name)


@pytest.mark.published
def test_gpt_oss_frames_are_no_part_of_taught_calls() -> None:
    said = (
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary<|message|>First.<|end|>"
        f"<|start|>assistant<|channel|>final<|message|>{SAID}<|return|>"
    )
    action, spans = taught("gpt_oss").read(tokenizer("gpt_oss").encode_joint(said))
    assert (action.calls, action.text, action.reasoning) == (CALLS, "First.\nSo.", "Hm.")
    assert [span.part for span in spans] == ["reasoning", "calls"]


def test_a_call_of_the_models_own_format_is_text() -> None:
    own = "<tool_call>look<arg_key>at</arg_key><arg_value>1</arg_value></tool_call>"
    made = taught("glm4_7")
    assert not [call for call in made.parse(tokenizer("glm4_7").encode_joint(own)).calls if isinstance(call, ToolCall)]
    plain = Renderer(tokenizer("glm4_7"), system_prompt_template="{tools}")
    assert plain.tool_format == "glm45"
    schema = {"type": "object", "properties": {"at": {"type": "integer"}}}
    tools = [ToolSpec(name="look", parameters=schema)]
    assert plain.parse(tokenizer("glm4_7").encode_joint(own), tools).calls == (
        ToolCall(name="look", arguments={"at": 1}),
    )


def test_the_stated_format_wins_over_the_taught_one() -> None:
    made = Renderer(tokenizer("glm4_7"), system_prompt_template=TEACHES, tool_format="qwen3_coder")
    assert made.tool_format == "qwen3_coder"
    assert [check.check for check in made.certificate.checks if not check.passed] == ["taught calls"]


def test_a_taught_format_serves_a_template_that_no_parser_reads() -> None:
    source = template("qwen3").replace('{{- \'<tool_call>\\n{"name": "\' }}', '{{- \'<|tools_prefix|>{"name": "\' }}')
    assert source != template("qwen3")
    with pytest.raises(RenderError, match="none of the parsers"):
        Renderer(qwen(source))
    with pytest.raises(RenderError, match="none of the parsers"):
        Renderer(qwen(source), system_prompt_template="{tools}")
    made = Renderer(qwen(source), system_prompt_template=TEACHES)
    assert made.certificate.passed
    assert made.tool_format == "hermes"


def test_first_messages_with_calls_are_refused_if_taught() -> None:
    first = (
        text_message("user", "Look."),
        Message(role="assistant", calls=CALLS),
        text_message("tool", "Dark.", name="look"),
        text_message("user", "Again."),
    )
    assert Renderer(tokenizer("glm4_7"), system_prompt_template="{tools}").open(first, ())
    with pytest.raises(RenderError, match="first messages hold calls"):
        taught("glm4_7").open(first, ())


def test_harmony_cannot_be_taught_to_another_model() -> None:
    with pytest.raises(RenderError, match="gpt_oss"):
        Renderer(tokenizer("glm4_7"), system_prompt_template="{tools}", tool_format="gpt_oss")


@pytest.mark.parametrize("wire", WIRES)
def test_an_example_of_a_call_tells_its_format(wire: str) -> None:
    example = WIRES[wire].text([ToolCall(name="look", arguments={"where": "the attic"})])
    found = taught_format(f"Tools: {{tools}}. Write:\n{example}".replace("{", "{{").replace("}", "}}"))
    assert found == (None if WIRES[wire].format in STATED_ONLY else WIRES[wire].format)


@pytest.mark.parametrize("text", ["{tools}", "Call tools in your own way. {tools}", "<tool_call>: {tools}"])
def test_a_text_without_an_example_teaches_no_format(text: str) -> None:
    assert taught_format(text) is None


def test_advice_about_formats_names_fields_of_the_configuration() -> None:
    for advice in (unsupported("", "no call"), unsupported("<function_call>", "")):
        last = advice.rpartition(". ")[2]
        named = set(re.findall(r"`(\w+)`", last))
        assert named
        assert named <= set(RunConfig.__struct_fields__)


@pytest.mark.parametrize(
    ("prompt", "place"),
    [
        ('{tools}\nUse {"name": "x"}.', "line 2, column 5"),
        ("{tools} {", "line 1, column 9"),
        ("{tools} }", "line 1, column 9"),
        ("{tools} {0}", "line 1, column 9"),
        ("{tools!r}", "line 1, column 1"),
        ("{{tools}}", "no {tools}"),
    ],
)
def test_brace_in_a_system_prompt_is_placed(prompt: str, place: str) -> None:
    with pytest.raises(RenderError, match=re.escape(place)):
        Renderer(qwen(template("qwen3")), system_prompt_template=prompt)


def test_doubled_braces_are_braces() -> None:
    prompt = "{{{tools}}} {{}}"
    check_system_prompt(prompt)
    assert prompt.format(tools="x") == "{x} {}"
