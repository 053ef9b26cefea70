"""Actions that a program wrote: their ids are the chat template's own, and they are read back."""

from __future__ import annotations

import pytest
from msgspec import structs
from orl_core import Action, Message, ParseFailure, RenderError, TextBlock, ToolCall, ToolSpec
from orl_core.messages import FailureKind
from orl_core.render.call_check import CASES, tools_of

from tests.core.tools.wire import without_ids
from tests.kit.families import renderer
from tests.kit.tokenizers import renderer_of, tokenizer

TOOL = ToolSpec(name="look", parameters={"type": "object", "properties": {"at": {"type": "string"}}})
CALL = ToolCall(name="look", arguments={"at": "the door"})
ACTIONS = [
    Action(calls=(CALL,)),
    Action(text="Let me see.", calls=(CALL, CALL)),
    Action(text="It is locked."),
    Action(calls=(ToolCall(name="look", arguments={"at": "a <|im_end|> in a text"}),)),
]


@pytest.mark.parametrize("action", ACTIONS)
def test_written_action_is_the_templates_own(action: Action) -> None:
    written, hf = renderer_of("qwen3_instruct_2507"), tokenizer("qwen3_instruct_2507")
    user = {"role": "user", "content": "Look."}
    calls = [{"function": {"name": call.name, "arguments": call.arguments}} for call in action.calls]  # type: ignore[union-attr]
    said = {"role": "assistant", "content": action.text, "tool_calls": calls}
    tools = [{"type": "function", "function": {"name": "look", "parameters": TOOL.parameters}}]
    prompt = hf.apply_chat_template([user], tools=tools, add_generation_prompt=True)
    whole = hf.apply_chat_template([user, said], tools=tools, add_generation_prompt=False)
    ids = written.write(action, [TOOL])
    assert hf.decode(ids) == whole.removeprefix(prompt).removesuffix("\n")
    assert ids[-1] == written.stop_ids[0]
    assert ids.count(ids[-1]) == 1  # L4
    assert written.parse(ids, [TOOL]) == action


@pytest.mark.parametrize(
    "name",
    [
        *("qwen3_coder", "glm4_7", "kimi_k2", "mistral_small_3_2"),
        pytest.param("gpt_oss", marks=pytest.mark.published),
    ],
)
def test_other_formats_are_read_back(name: str) -> None:
    written = renderer(name)
    for case in CASES[:14]:
        action = Action(calls=case.calls)
        read = written.parse(written.write(action, tools_of(case)), tools_of(case))
        assert structs.replace(read, calls=without_ids(read.calls)) == action


def test_next_message_follows_a_written_action() -> None:
    written = renderer_of("qwen3_instruct_2507")
    ids = written.write(Action(calls=(CALL,)), [TOOL])
    result = Message(role="tool", name="look", content=(TextBlock(text="locked"),))
    assert written.extend(ids, [result], calls_before=0)


def test_what_is_not_read_back_is_refused() -> None:
    written = renderer_of("qwen3_instruct_2507")
    broken = ParseFailure(kind=FailureKind.UNCLOSED, message="cut", text="<tool_call>")
    for action in (Action(calls=(broken,)), Action(text='<tool_call>\n{"name": "look"}\n</tool_call>')):
        if action.calls:
            with pytest.raises(RenderError):
                written.write(action, [TOOL])
        else:
            assert written.parse(written.write(action, [TOOL]), [TOOL]).calls == ()  # text stays text: L4
