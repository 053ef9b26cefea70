"""Every wire format: golden cases, what holds for any text, cuts, round trips, strangers, marks, and linear time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from orl_core import tools
from orl_core.errors import RenderError
from orl_core.messages import Action, FailureKind, ParseFailure, ToolCall, ToolSpec
from orl_core.tools import (
    TOOL_FORMATS,
    Mark,
    Marked,
    ToolFormat,
    parse,
    wire_format,
)
from orl_core.tools.scan import mark
from orl_core.tools.strict_json import MAX_DEPTH

from tests.core.tools.wire import WIRES, Wire, any_calls, quiet_calls, tools_for, without_ids

GOLDEN = Path(__file__).parents[2] / "golden"
TOOLS = (
    ToolSpec(
        name="add", parameters={"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "number"}}}
    ),
    ToolSpec(
        name="say",
        parameters={
            "type": "object",
            "properties": {
                "text": {"type": "string"},
                "to": {"type": ["string", "null"]},
                "loud": {"type": "boolean"},
                "how": {"type": "object"},
            },
        },
    ),
)
EVERY = sorted({text for tool_format in TOOL_FORMATS for text in wire_format(tool_format).delimiters})
FRAGMENTS = (
    *EVERY,
    *(
        '{"name": "a"',
        '{"name": "a", "arguments": {"x": "',
        '"type":',
        "function",
        "```json\n",
        "functions.a:0",
        " to=a",
    ),
    *("[a(x=", "'''", '"""', "'", '"', "{", "}", "[", "]", "(", ")", ",", ":", ";", ">", "\\", "\n", "1", "</｜DSML｜"),
    *("call:a{x:", '<|"|>a<|"|>', "<function=a>", "a(x=1)", '{"tool_name": "a", "parameters": {'),
    *('<｜DSML｜invoke name="a">', "<｜DSML｜function_calls>", '"a">', "a>", "=", "true"),
    *("<tool_call>", "</tool_call>", '<invoke name="a">', "</invoke>", "<a>", "</a>", "<item>", "</item>"),
    *("<function=say></function>", '<invoke name="say"></invoke>', '{"name": "say", "arguments": {}}', "say(x=1)"),
    *("tools", 'call tool="a" index="1"', 'argument key="a" type="number"', "json", "call", "argument", "response"),
)
SOUP = st.lists(st.sampled_from(FRAGMENTS) | st.text(max_size=4), max_size=14).map("".join)


def check_golden(case: dict[str, Any], tool_format: ToolFormat) -> None:
    expected = msgspec.convert(
        {"text": case.get("said", ""), "reasoning": case.get("reasoning", ""), "calls": case.get("calls", [])}, Action
    )
    found = parse(case["text"], tool_format, tools=TOOLS, reasoning_opened=case.get("opened", False))
    assert found == expected, case["case"]


@pytest.mark.parametrize("tool_format", TOOL_FORMATS)
def test_golden(tool_format: ToolFormat) -> None:
    for case in json.loads((GOLDEN / f"{tool_format}.json").read_text(encoding="utf-8")):
        check_golden(case, tool_format)


@given(SOUP | st.text(st.characters(codec=None)), st.booleans())
@example("[a(x=" + "[" * 100_000, False)
@example("[a(x=" + "1" * 5000 + ")]", False)
@example("[a(x='\\U00110000\\ud800')]", False)
@example("<tool_call><function=a><parameter=x>" + "[" * 100_000 + "</parameter></function>", False)
@example("[TOOL_CALLS]" + "[" * 100_000, False)
@example('<｜DSML｜function_calls><｜DSML｜invoke name="a">' + '{"a":' * 100_000, False)
@example("\x00" * 100_000 + "<tool_call>\x00</tool_call>", True)
def test_any_text_gives_an_action_that_a_journal_can_hold(text: str, opened: bool) -> None:
    for tool_format in TOOL_FORMATS:
        _check_total(tool_format, text, opened)


def _check_total(tool_format: ToolFormat, text: str, opened: bool) -> None:
    action = parse(text, tool_format, tools=TOOLS, reasoning_opened=opened)
    msgspec.json.encode(action)
    for call in action.calls:
        if isinstance(call, ParseFailure):
            assert call.message
            assert "\n" not in call.message
            assert call.kind in list(FailureKind)[:7]
        else:
            assert call.name


@given(SOUP, st.randoms(use_true_random=False))
def test_any_marks_give_an_action(text: str, random: Any) -> None:
    """As a renderer marks them: some spellings are delimiters, others are text."""
    for tool_format in TOOL_FORMATS:
        kept = tuple(mark for mark in spelled(text, tool_format) if random.random() < 0.7)
        msgspec.json.encode(wire_format(tool_format).read(Marked(text=text, marks=kept), (), reasoning_opened=False)[0])


# Calls are drawn once for all the ways to write them: every format sees every example.
ESCAPING = [wire for wire in WIRES.values() if wire.hostile]
LITERAL = [wire for wire in WIRES.values() if not wire.hostile]


@given(any_calls, quiet_calls, st.sampled_from(["", "Let me see.\n"]), st.booleans())
def test_what_is_written_is_read(escaped: list[ToolCall], quiet: list[ToolCall], said: str, thinks: bool) -> None:
    for wire, calls in (*((wire, escaped) for wire in ESCAPING), *((wire, quiet) for wire in LITERAL)):
        opening, closing = wire_format(wire.format).thinking
        reasons = f"{opening}\nHm.\n{closing}\n\n" if thinks and wire.format != "gpt_oss" else ""
        bare = wire.before == "["
        spoken = "" if bare or wire.format == "gpt_oss" else said  # nothing but their place says that they are calls
        action = parse(reasons + spoken + wire.text(calls), wire.format, tools=tools_for(calls))
        assert repr(without_ids(action.calls)) == repr(tuple(calls)), wire.format  # 1, 1.0 and True differ
        assert (action.text, action.reasoning) == (spoken.strip(), "Hm." if reasons else ""), wire.format


def check_cut(wire: Wire, calls: list[ToolCall], text: str, cut: int) -> None:
    """The text cut there gives the complete calls before the cut, and at most one that is not complete."""
    found = without_ids(parse(text[:cut], wire.format, tools=tools_for(calls)).calls)
    whole = [call for call in found if isinstance(call, ToolCall)]
    assert repr(whole) == repr(calls[: len(whole)])
    assert len(whole) >= sum(end <= cut for end in wire.ends(calls))
    assert tuple(whole) == found[: len(whole)]
    assert [call.kind for call in found if isinstance(call, ParseFailure)] in ([], [FailureKind.UNCLOSED])


def spelled(text: str, tool_format: ToolFormat) -> tuple[Mark, ...]:
    return mark(text, wire_format(tool_format).delimiters).marks


def within_delimiters(text: str, tool_format: ToolFormat) -> set[int]:
    """Return the places at which a cut would split a delimiter, which may be one id."""
    return {place for found in spelled(text, tool_format) for place in range(found.start + 1, found.end)}


@given(any_calls, quiet_calls, st.integers(0, 10**6))
def test_cut_text_gives_the_complete_calls_before_the_cut(
    escaped: list[ToolCall], quiet: list[ToolCall], seed: int
) -> None:
    for wire, calls in (*((wire, escaped) for wire in ESCAPING), *((wire, quiet) for wire in LITERAL)):
        text = wire.text(calls)
        cut = seed % (len(text) + 1)
        cut = next((found.start for found in spelled(text, wire.format) if found.start < cut < found.end), cut)
        check_cut(wire, calls, text, cut)


CUT = [ToolCall(name="say", arguments={"x": 'é"😀\n', "y": [1, {"z": None}]}), ToolCall(name="now", arguments={})]


@pytest.mark.parametrize("wire", WIRES.values(), ids=WIRES.keys())
def test_two_calls_cut_at_every_character(wire: Wire) -> None:
    text = wire.text(CUT)
    for cut in sorted(set(range(len(text) + 1)) - within_delimiters(text, wire.format)):
        check_cut(wire, CUT, text, cut)


@given(quiet_calls)
def test_a_call_of_one_format_is_no_call_in_another(calls: list[ToolCall]) -> None:
    tools = tools_for(calls)
    for wire in WIRES.values():
        text = wire.text(calls)
        for reader in TOOL_FORMATS:
            if reader != wire.format and {reader, wire.format} != {"pythonic", "lfm2_5"}:
                found = parse(text, reader, tools=tools).calls
                assert not [call for call in found if isinstance(call, ToolCall)], (wire.format, reader)


@given(quiet_calls)
def test_a_spelled_delimiter_that_is_not_marked_is_text(calls: list[ToolCall]) -> None:
    tools = tools_for(calls)
    for wire in WIRES.values():
        text = wire.text(calls)
        action = wire_format(wire.format).read(Marked(text=text), tools, reasoning_opened=False)[0]
        if wire.before not in {"", "["} or not text.startswith("{"):
            bare = wire.before == "[" or wire.format == "llama3"
            assert bool(action.calls) == bare, wire.format
            assert bare or action.text == text.strip(), wire.format


@given(SOUP)
def test_a_value_may_spell_delimiters_that_the_vocabulary_holds(value: str) -> None:
    for wire in WIRES.values():
        if not wire.hostile and wire.format != "lfm2_5":  # JSON escapes; no delimiters
            _check_value(wire, value)


def _check_value(wire: Wire, value: str) -> None:
    call, empty = ToolCall(name="say", arguments={"x": value}), ToolCall(name="say", arguments={"x": ""})
    frame = wire.text([empty])
    start = frame.index(VALUE_ENDS[wire.format])
    marks = tuple(
        Mark(start=mark.start + moved, end=mark.end + moved, delimiter=mark.delimiter)
        for mark in spelled(frame, wire.format)
        for moved in [len(value) if mark.start >= start else 0]
    )
    text = wire.text([call])
    read, _ = wire_format(wire.format).read(Marked(text=text, marks=marks), tools_for([call]), reasoning_opened=False)
    assert without_ids(read.calls) == (call,)


VALUE_ENDS = {
    "qwen3_coder": "\n</parameter>",
    "minimax": "</parameter>",
    "glm45": "</arg_value>",
    "deepseek": "</｜DSML｜parameter>",
    "gemma4": '<|"|>}',
    "seed_oss": "</parameter>",
}


@given(text=SOUP, opened=st.booleans())
def test_parts_are_ordered_and_the_rest_is_text(text: str, *, opened: bool) -> None:
    for tool_format in TOOL_FORMATS:
        _check_parts(tool_format, text, opened=opened)


def _check_parts(tool_format: ToolFormat, text: str, *, opened: bool) -> None:
    marked = mark(text, wire_format(tool_format).delimiters)
    action, spans = wire_format(tool_format).read(marked, TOOLS, reasoning_opened=opened)
    borders = [0, *(place for span in spans for place in (span.start, span.end)), len(text)]
    assert borders == sorted(borders)
    parts = {span.part for span in spans}
    assert bool(action.calls) <= ("calls" in parts)
    assert bool(action.reasoning) <= ("reasoning" in parts)
    if tool_format not in {"gpt_oss", "cohere", "llama3"}:  # headers of text belong to no part
        left = "".join(text[start:end] for start, end in zip(borders[::2], borders[1::2], strict=True))
        assert "".join(action.text.split()) == "".join(left.split())


@pytest.mark.parametrize(
    "rest", ["', q1=[]), look0()]<|tool_call_end|>", "', q1=[])", "', q1=[])]<|tool_call_start|>[look()]"]
)
def test_a_list_of_lfm2_5_that_text_follows_is_cut_too_early(rest: str) -> None:
    for text, number in (("[look1(p1='x')]", 1), ("[look0(), look1(p1='x')]", 2)):
        calls = parse(f"<|tool_call_start|>{text}{rest}", "lfm2_5").calls[:number]
        assert [call.name for call in calls] == ["look0", "look1"][-number:]
        assert isinstance(calls[-1], ParseFailure)
        assert (calls[-1].kind == FailureKind.MALFORMED) == rest.endswith("end|>")


@pytest.mark.parametrize(
    ("tool_format", "opening", "closing"),
    [
        ("hermes", '<tool_call>{"name": "a", "arguments": {"x": ', "}}</tool_call>"),
        ("pythonic", "[a(x={'x': ", "})]"),
        ("gemma4", "<|tool_call>call:a{x:", "}<tool_call|>"),
    ],
)
@pytest.mark.parametrize("depth", [MAX_DEPTH - 2, 500, 50_000])
def test_deep_nesting_is_a_mistake(tool_format: ToolFormat, opening: str, closing: str, depth: int) -> None:
    """A model's mistake never ends the process, however deep a value is."""
    (call,) = parse(opening + "[" * depth + "]" * depth + closing, tool_format).calls
    assert isinstance(call, ToolCall) == (depth == MAX_DEPTH - 2)


@pytest.mark.parametrize(
    ("literal", "value"),
    [
        (r"'\d\x41\u00e9\101\''", "\\dAéA'"),
        ("'a\r\nb\0'", "a\r\nb\0"),
        (r"'\U00110000\ud800'", "\\U00110000\ufffd"),
        ("(1, ('a'), ())", [1, "a", []]),
        ("[+1, -2.5e3, null, True, ]", [1, -2500.0, None, True]),
        ('"""it\'s "so\\""""', 'it\'s "so"'),
    ],
)
def test_python_literal_is_read(literal: str, value: Any) -> None:
    (call,) = parse(f"[a(x={literal})]", "pythonic").calls
    assert isinstance(call, ToolCall)
    assert repr(call.arguments["x"]) == repr(value)


@pytest.mark.parametrize(
    "literal", ["b'a'", "f''", "{1}", "{1: 2}", "1+2", "x", "1_0", "0x10", "(1]", "[,]", "1e999", "'a' 'b'"]
)
def test_other_python_is_refused(literal: str) -> None:
    (call,) = parse(f"[a(x={literal})]", "pythonic").calls
    assert isinstance(call, ParseFailure)
    assert call.kind == FailureKind.MALFORMED


NOW = ToolCall(name="now")
TAGGED = ("gemma4", "deepseek, V3.2 with JSON")  # an empty body is no call of theirs
JSON_WIRES = {name: wire for name, wire in WIRES.items() if "{}" in wire.text([NOW]) and name not in TAGGED}


@pytest.mark.parametrize("wire", JSON_WIRES.values(), ids=JSON_WIRES.keys())
def test_empty_arguments_are_no_arguments(wire: Wire) -> None:
    """Models write `""`, or nothing, for the arguments of a tool that requires none."""
    text = wire.text([NOW])
    for empty in ['""'] if '": {}' in text else ['""', "", " \n"]:
        action = parse(text.replace("{}", empty), wire.format, tools=[ToolSpec(name="now")])
        assert without_ids(action.calls) == (NOW,), empty
    required = ToolSpec(name="now", parameters={"type": "object", "required": ["zone"]})
    if '": {}' not in text:
        (call,) = parse(text.replace("{}", ""), wire.format, tools=[required]).calls
        assert isinstance(call, ParseFailure)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("qwen35", "qwen3_coder"),
        ("Llama_3.1", "llama3"),
        ("Qwen/Qwen3-8B", "hermes"),  # and not qwen3.8
        ("Qwen/Qwen3.8-27B", "qwen3_coder"),
        ("Qwen/Qwen3-Coder-30B-A3B-Instruct", "qwen3_coder"),
        ("moonshotai/Kimi-K2-Thinking", "kimi_k2"),
        ("MiniMaxAI/MiniMax-M2.5", "minimax"),
        ("deepseek-v4", "deepseek"),
        ("openai/gpt-oss-20b", "gpt_oss"),
        ("meta-llama/Llama-4-Scout-17B-16E-Instruct", "llama3"),
        ("mistral-small-3.2", "mistral"),
        ("google/gemma-4-27b-it", "gemma4"),
    ],
)
def test_family_of_a_name_is_known(name: str, expected: str) -> None:
    assert tools.tool_format(name) == expected


@pytest.mark.parametrize("name", ["", "qwen3x", "Org/Unknown", "Org/", "my-qwen3"])
def test_unknown_family_is_refused(name: str) -> None:
    with pytest.raises(RenderError):
        tools.tool_format(name)
