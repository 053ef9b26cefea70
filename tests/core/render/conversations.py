"""Texts and conversations for the tests of rendering."""

from __future__ import annotations

from hypothesis import strategies as st
from orl_core.messages import Message, TextBlock, ToolCall, text_message
from orl_core.render.certify import BENIGN

from tests.tokenizers import QWEN3_ADDED, QWEN_SPECIAL

CONTROL_STRINGS = (*QWEN_SPECIAL, *QWEN3_ADDED)
TEMPLATES = ("qwen2_5", "qwen3", "qwen3_instruct_2507")

# Texts without a control string and without a beginning or an ending of one.
harmless = st.sampled_from(BENIGN) | st.text(st.characters(codec="utf-8", exclude_characters="<|>"), max_size=20)
# Texts made to become control ids: whole, cut at either end, glued together, between ordinary text.
hostile = st.lists(
    st.sampled_from(CONTROL_STRINGS)
    | st.tuples(st.sampled_from(CONTROL_STRINGS), st.integers(1, 20)).map(lambda cut: cut[0][: cut[1]])
    | st.tuples(st.sampled_from(CONTROL_STRINGS), st.integers(1, 20)).map(lambda cut: cut[0][cut[1] :])
    | st.text(max_size=3),
    max_size=5,
).map("".join)
calls = st.builds(
    ToolCall,
    name=st.sampled_from(["look", "ask"]),
    arguments=st.dictionaries(st.sampled_from("ab"), harmless, max_size=2),
)


@st.composite
def rounds(draw: st.DrawFn) -> tuple[Message, tuple[Message, ...]]:
    """An action and what answers it: one result for each call, else a user message; sometimes both."""
    made = tuple(draw(st.lists(calls, max_size=3)))
    said = draw(st.sampled_from(["", "Let me see.", "Hm…\n\nwell"])) if made else "I think so."
    action = Message(role="assistant", content=(TextBlock(text=said),), calls=made)
    answers = [text_message("tool", draw(harmless), name=call.name) for call in made]
    if not made or draw(st.integers(0, 4)) == 0:
        answers.append(text_message("user", draw(harmless)))
    return action, tuple(answers)
