"""A call that lacks a tag is made if the family's own parsers make it, or else named; a mention of one is text."""

from __future__ import annotations

import pytest
from orl_core.messages import FailureKind, ParseFailure, ToolCall
from orl_core.tools import ToolFormat, parse, wire_format

from tests.core.tools.wire import WIRES, tools_for, without_ids

CALL, NOW = ToolCall(name="say", arguments={"x": "y z"}), ToolCall(name="now")
TOOLS = tools_for([CALL, NOW])
# The opening of every way to write calls, and what becomes of a call without it. In TEXT nothing but the opening tells
# a call from an answer in JSON.
MADE = {
    **dict.fromkeys(("qwen3_coder", "qwen3_coder, one block"), "<tool_call>"),
    **dict.fromkeys(("seed_oss", "seed_oss, as Python"), "<seed:tool_call>"),
    **dict.fromkeys(("deepseek, V3.2", "deepseek, V3.2 with JSON"), "<｜DSML｜function_calls>"),
    "deepseek, V4": "<｜DSML｜tool_calls>",
    "minimax": "<minimax:tool_call>",
    "gpt_oss": "<|channel|>",
    "llama3, tag": "<|python_tag|>",
}
NAMED = {
    **dict.fromkeys(("hermes", "glm45", "glm45, compact"), "<tool_call>"),
    **dict.fromkeys(("deepseek, V3", "deepseek, V3.1"), "<｜tool▁call▁begin｜>"),
    **dict.fromkeys(("pythonic, LFM2", "pythonic, LFM2 in JSON", "lfm2_5"), "<|tool_call_start|>"),
    "kimi_k2": "<|tool_call_begin|>",
    "mistral, compact": "[TOOL_CALLS]",
    "pythonic, Llama 4": "<|python_start|>",
    "cohere": "<|START_ACTION|>",
    "gemma4": "<|tool_call>",
    "olmo3": "<function_calls>",
    "opened_array, Nemotron Nano v2": "<TOOLCALL>",
}
TEXT = {"mistral": "[TOOL_CALLS]", "opened_array, Granite 3": "<|tool_call|>"}
BARE = {"llama3", "pythonic", "json_array"}  # they have no opening

# Formats whose own parsers make no call inside reasoning that is never closed.
STRICT = {"llama3", "mistral", "pythonic", "olmo3", "lfm2_5", "opened_array"}


def test_table_has_every_way_to_write_calls() -> None:
    assert {*MADE, *NAMED, *TEXT, *BARE} == WIRES.keys()


@pytest.mark.parametrize("said", ["", "Hm.\n\n"])
@pytest.mark.parametrize("call", [CALL, NOW])
@pytest.mark.parametrize("name", [*MADE, *NAMED, *TEXT])
def test_call_without_its_opening_is_found_or_named(name: str, call: ToolCall, said: str) -> None:
    wire, opening = WIRES[name], {**MADE, **NAMED, **TEXT}[name]
    action = parse(said + wire.text([call]).replace(opening, "", 1), wire.format, tools=TOOLS)
    if name in TEXT:
        assert action.calls == ()
    elif name in MADE or (wire.format == "pythonic" and not said and name != "pythonic, LFM2 in JSON"):
        assert action.calls == (call,)
    else:
        (failure,) = action.calls
        assert isinstance(failure, ParseFailure)
        assert (failure.kind, opening in failure.message) == (FailureKind.UNOPENED, True)
        assert action.text == said.strip()


@pytest.mark.parametrize("name", WIRES)
@pytest.mark.parametrize("opened", [True, False])
def test_call_in_open_reasoning_is_found_or_named(name: str, *, opened: bool) -> None:
    wire = WIRES[name]
    opening, closing = wire_format(wire.format).thinking
    calls = [CALL, NOW] if wire.format != "gpt_oss" else [CALL]
    written = wire.text(calls)
    action = parse(f"{'' if opened else opening}Hm. {written}", wire.format, tools=TOOLS, reasoning_opened=opened)
    if name in BARE - {"llama3"}:
        assert (action.calls, action.reasoning) == ((), f"Hm. {written}".strip())
        return
    assert (action.reasoning, action.text) == ("Hm.", "")
    if wire.format not in STRICT:
        assert without_ids(action.calls) == tuple(calls)
        return
    (failure,) = action.calls
    assert isinstance(failure, ParseFailure)
    assert (failure.kind, closing in failure.message) == (FailureKind.IN_REASONING, True)


@pytest.mark.parametrize("name", [name for name in WIRES if name != "gpt_oss"])  # there a header ends a message
def test_call_in_closed_reasoning_is_a_mention(name: str) -> None:
    wire = WIRES[name]
    opening, closing = wire_format(wire.format).thinking
    thought = f"Hm. {wire.text([CALL])}"
    action = parse(f"{opening}{thought}{closing}Done.", wire.format, tools=TOOLS)
    assert (action.calls, action.text, action.reasoning) == ((), "Done.", thought.strip())


@pytest.mark.parametrize("name", [name for name in (*MADE, *NAMED) if name not in {"gpt_oss", "llama3, tag"}])
def test_model_without_tools_writes_text(name: str) -> None:
    wire, opening = WIRES[name], {**MADE, **NAMED}[name]
    unopened = wire.text([CALL]).replace(opening, "", 1)
    assert parse(f"Hm. {unopened}", wire.format).calls == ()
    assert parse(f"Hm. {wire.text([CALL])}", wire.format, reasoning_opened=True).calls == ()


CODER = "<function=say>\n<parameter=x>\n1\n</parameter>\n</function>"
MENTIONS: list[tuple[ToolFormat, str]] = [
    ("hermes", "A call ends in </tool_call>, and begins with <tool_call"),
    ("hermes", "So: </tool_call>"),
    ("hermes", '```\n{"name": "say", "arguments": {}}\n</tool_call>\n```'),
    ("hermes", '{"name": "say", "arguments": {"x": 1}}'),
    ("hermes", '{"name": "say"}</tool_call> is half a call.'),
    ("glm45", "I say no more.</tool_call>"),
    ("qwen3_coder", f"```\n{CODER}\n</tool_call>\n```"),
    ("qwen3_coder", f"Write {CODER} to say 1."),
    ("qwen3_coder", "I could write <function=say>, or not."),
    ("qwen3_coder", "<function=say>\n<parameter=x>\n1"),
    ("qwen3_coder", CODER.replace("say", "unknown")),
    ("minimax", 'Write <invoke name="say"></invoke> and more.'),
    ("deepseek", 'Tags such as <｜DSML｜invoke name="say"> open a call.'),
    ("mistral", "Write say[ARGS] and an object."),
    ("json_array", 'The answer: [{"name": "say"}]'),
]


@pytest.mark.parametrize(("tool_format", "text"), MENTIONS)
def test_mention_of_a_tag_is_text(tool_format: ToolFormat, text: str) -> None:
    action = parse(text, tool_format, tools=TOOLS)
    assert (action.calls, action.text) == ((), text)


@pytest.mark.parametrize(
    ("tool_format", "thought"),
    [
        ("hermes", "I could write <tool_call> here."),
        ("hermes", '<tool_call>{"name": "say", "arguments": {}}</tool_call>? No, better not.'),
        ("qwen3_coder", f"<tool_call>\n{CODER}\n</tool_call> is what I could write."),
        ("kimi_k2", "After <|tool_call_begin|> comes a name."),
    ],
)
def test_mention_in_open_reasoning_is_reasoning(tool_format: ToolFormat, thought: str) -> None:
    action = parse(f"<think>{thought}", tool_format, tools=TOOLS)
    assert (action.calls, action.text, action.reasoning) == ((), "", thought)


def test_call_after_a_mention_in_open_reasoning_is_made() -> None:
    thought = 'I write <tool_call>, such as <tool_call>{"name": "now"}</tool_call>, or rather'
    action = parse(f"<think>{thought}\n{WIRES['hermes'].text([CALL])}", "hermes", tools=TOOLS)
    assert (action.calls, action.reasoning) == ((CALL,), thought)


def test_unknown_tool_in_a_closed_block_is_a_call() -> None:
    """The loop says that there is no such tool."""
    (call,) = parse(f"{CODER.replace('say', 'sing')}</tool_call>", "qwen3_coder", tools=TOOLS).calls
    assert isinstance(call, ToolCall)
    assert call.name == "sing"
