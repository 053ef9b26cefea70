"""`render_call` and `parse` are inverses, for every format; what a format cannot express is refused."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from orl_core import RenderError, ToolCall, parse, render_call
from orl_core.messages import Action
from orl_core.tools import TOOL_FORMATS, ToolFormat

from tests.core.tools.wire import any_calls, quiet_calls, tools_for, without_ids

ESCAPING: tuple[ToolFormat, ...] = (
    *("hermes", "llama3", "mistral", "deepseek", "kimi_k2", "gpt_oss", "pythonic", "cohere", "olmo3"),
    *("json_array", "opened_array"),
)


def read(text: str, tool_format: str, call: ToolCall) -> Action:
    """Return what is read, without the ids that some formats write."""
    action = parse(text, tool_format, tools=tools_for([call]))
    return structs.replace(action, calls=without_ids(action.calls))


# Calls are drawn once for all formats: every format sees every example.


@given(quiet_calls)
def test_parse_reads_what_was_rendered(calls: list[ToolCall]) -> None:
    for call, tool_format in product(calls, TOOL_FORMATS):
        try:
            text = render_call(call, tool_format)
        except RenderError:
            assert tool_format not in ESCAPING
            continue
        assert read(text, tool_format, call) == Action(calls=(call,))


@given(any_calls)
def test_escaping_formats_express_any_call(calls: list[ToolCall]) -> None:
    for call, tool_format in product(calls, ESCAPING):
        assert read(render_call(call, tool_format), tool_format, call) == Action(calls=(call,))


@given(text=st.text(st.characters(categories=("L", "N")), min_size=1, max_size=8), number=st.integers(-(10**6), 10**6))
def test_every_format_expresses_plain_calls(text: str, number: int) -> None:
    arguments: dict[str, Any] = {"where": f"the {text}", "count": number, "sure": True, "all": [1, "a b"]}
    call = ToolCall(name="look_up", arguments=arguments)
    for tool_format in TOOL_FORMATS:
        assert read(render_call(call, tool_format), tool_format, call) == Action(calls=(call,))


@pytest.mark.parametrize(
    ("tool_format", "value"),
    [
        ("qwen3_coder", "a</parameter>b"),
        ("glm45", "a</arg_value>b"),
        ("gemma4", 'a<|"|>b'),
        ("lfm2_5", "a', b='c"),
        ("hermes", float("nan")),
    ],
)
def test_inexpressible_call_is_refused(tool_format: ToolFormat, value: Any) -> None:
    with pytest.raises(RenderError, match=tool_format):
        render_call(ToolCall(name="look", arguments={"a": value}), tool_format)


@pytest.mark.parametrize(
    ("family", "tool_format"),
    [("qwen3", "hermes"), ("Llama-3.1", "llama3"), ("DeepSeek-V3.1", "deepseek"), ("kimi-k2", "kimi_k2")],
)
def test_family_names_its_format(family: str, tool_format: ToolFormat) -> None:
    call = ToolCall(name="look", arguments={"where": "attic"})
    assert render_call(call, family) == render_call(call, tool_format)
    assert read(render_call(call, tool_format), family, call) == Action(calls=(call,))


def test_unknown_format_is_named() -> None:
    with pytest.raises(RenderError, match=r"hermse.*did you mean hermes"):
        parse("", "hermse")


@pytest.mark.parametrize("end", ["<|eom_id|>", "<|eot_id|>", "<|im_end|>"])
def test_stop_token_is_no_text(end: str) -> None:
    call = ToolCall(name="look", arguments={})
    assert parse(render_call(call, "llama3") + end, "llama3") == Action(calls=(call,))
    assert parse(f"Done.{end}", "llama3") == Action(text="Done.")
