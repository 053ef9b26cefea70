"""The check that a parser reads back the calls that a template writes: what is refused, and what is recorded."""

from __future__ import annotations

from copy import copy
from functools import cache

import pytest
from orl_core.errors import RenderError
from orl_core.render import Renderer
from orl_core.render.call_check import CallCheck
from orl_core.render.calls import CallReader
from orl_core.render.certify import Check
from orl_core.render.controls import Controls
from orl_core.render.plan import Plans
from orl_core.tools import ToolFormat
from orl_rollout.tokenizer.tokenizer import HFTokenizer
from transformers import PreTrainedTokenizerFast

from tests.kit.tokenizers import QWEN3_ADDED, build, template

QWEN3 = template("qwen3")
LFM2 = ("<|tool_call_start|>", "<|tool_call_end|>")
LLAMA4 = ("<|header_start|>", "<|header_end|>", "<|eot|>", "<|eom|>", "<|python_start|>", "<|python_end|>")


@cache
def built() -> PreTrainedTokenizerFast:
    return build(QWEN3, (*QWEN3_ADDED, *LFM2, *LLAMA4))


def tokenizer(source: str, *stops: str) -> HFTokenizer:
    hf = copy(built())
    hf.chat_template = source
    return HFTokenizer(hf, stop_ids=[hf.get_vocab()[stop] for stop in stops])


def check(source: str, tool_format: ToolFormat | None = None, *stops: str) -> Check:
    """The row of the certificate."""
    tok = tokenizer(source, *stops)
    controls = Controls(tok)
    calls = CallCheck(Plans(tok, controls))
    found = tool_format or calls.detect_format()
    return calls.check(calls.dialect(found), CallReader(tok, controls, found))


def changed(old: str, new: str) -> str:
    assert old in QWEN3
    return QWEN3.replace(old, new)


def test_a_template_whose_calls_are_all_read_back_passes() -> None:
    assert check(QWEN3).passed
    assert "cannot express" not in check(QWEN3).detail


# Qwen3's template with a fault: what it writes is read as something else.
ARGUMENTS = "{{- tool_call.arguments | tojson }}"
FAULTS = {
    "integers": (ARGUMENTS, "{{- tool_call.arguments | tojson | replace('-12', '12') }}"),
    "floats": (ARGUMENTS, "{{- tool_call.arguments | tojson | replace('2.0', '2') }}"),
    "null": (ARGUMENTS, "{{- tool_call.arguments | tojson | replace('ing\": null', 'ing\": 0') }}"),
    "quotes": (ARGUMENTS, "{{- tool_call.arguments | tojson | replace('say ', '') }}"),
    "lines": (ARGUMENTS, "{{- tool_call.arguments | tojson | replace('one\\\\n', 'one\\n') }}"),
    "text before a call": (
        "content = message.content if",
        "content = message.content | replace('see.', 'see.<tool_call>') if",
    ),
}


@pytest.mark.parametrize("stated", ["hermes", None])
@pytest.mark.parametrize("case", FAULTS)
def test_a_case_that_is_expressed_and_misread_is_refused(case: str, stated: ToolFormat | None) -> None:
    source = changed("{{- tool_call.arguments }}", "{{- raise_exception('an object') }}")
    assert check(source, stated).passed
    old, new = FAULTS[case]
    assert old in source
    with pytest.raises(RenderError, match=case):
        check(source.replace(old, new), stated)


def test_stated_format_that_cannot_read_calls_is_refused() -> None:
    with pytest.raises(RenderError, match="`glm45` parser reads"):
        Renderer(tokenizer(QWEN3), tool_format="glm45")


@pytest.mark.parametrize(
    ("old", "new", "case"),
    [
        ("{%- for tool_call in message.tool_calls %}", "{%- for tool_call in message.tool_calls[:1] %}", "two calls"),
        (
            "{%- for tool_call in message.tool_calls %}",
            "{%- if message.tool_calls[1:] %}{{ raise_exception('one call') }}{% endif %}"
            "{%- for tool_call in message.tool_calls %}",
            "two calls",
        ),
    ],
)
def test_a_case_that_a_template_cannot_express_is_recorded(old: str, new: str, case: str) -> None:
    row = check(changed(old, new))
    assert row.passed
    assert "cannot express" in row.detail
    assert case in row.detail


def test_template_without_calls_needs_a_stated_format() -> None:
    source = changed("{%- for tool_call in message.tool_calls %}", "{%- for tool_call in [] %}")
    assert not check(source, "hermes").passed
    with pytest.raises(RenderError, match="not made for tools"):
        check(source)


@pytest.mark.published
@pytest.mark.parametrize("name", ["lfm2_v2", "lfm2_2_5_vl"])
def test_lfm2_reads_dashes_in_names_and_strings_of_two_lines(name: str) -> None:
    row = check(template(name))
    assert row.passed
    assert "cannot express" not in row.detail


@pytest.mark.parametrize("name", ["llama4_json", "llama4"])
def test_llama_4s_text_before_json_calls_is_read(name: str) -> None:
    row = check(template(name), None, "<|eot|>", "<|eom|>")
    assert row.passed
    assert "cannot express" not in row.detail


def test_arguments_are_text_if_template_prints_python_objects() -> None:
    source = changed("tool_call.arguments | tojson", "tool_call.arguments | string")
    assert check(source).passed


@pytest.mark.published
@pytest.mark.parametrize("name", ["llama3_1", "gptoss"])
def test_arguments_of_every_type_are_read_back_with_their_types(name: str) -> None:
    """Published templates that write one call only: the other cases are recorded, and all types are read."""
    hf = build(template(name), (*QWEN3_ADDED, "<|eot_id|>", "<|call|>", "<|channel|>", "<|message|>"))
    tok = HFTokenizer(hf, stop_ids=[hf.get_vocab()[stop] for stop in ("<|eot_id|>", "<|call|>")])
    controls = Controls(tok)
    calls = CallCheck(Plans(tok, controls))
    found = calls.detect_format()
    row = calls.check(calls.dialect(found), CallReader(tok, controls, found))
    assert row.passed
    assert "two calls" in row.detail
    assert not [kind for kind in ("floats", "null", "objects", "quotes", "dashes") if kind in row.detail]
