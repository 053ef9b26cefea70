"""Texts and conversations for the tests of rendering."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import settings
from hypothesis import strategies as st
from orl_core.messages import Message, TextBlock, ToolCall, text_message
from orl_core.render.certify import BENIGN

from tests.kit.tokenizers import QWEN3_ADDED, QWEN_SPECIAL

# For properties of twenty families: each has a tenth of the profile's examples, so that all have twice as many.
few = settings(max_examples=settings().max_examples // 10)
CONTROL_STRINGS = (*QWEN_SPECIAL, *QWEN3_ADDED)
TEMPLATES = ("qwen2_5", "qwen3", "qwen3_instruct_2507")

# Texts without a control string and without a beginning or an ending of one.
harmless = st.sampled_from(BENIGN) | st.text(
    st.characters(codec="utf-8", exclude_characters="<|>[]~/!｜▁"), max_size=20
)


def hostile_to(controls: Sequence[str]) -> st.SearchStrategy[str]:
    """Texts made to become one of these control strings: whole, cut at either end, glued, between ordinary text."""
    one = st.sampled_from(list(controls))
    return st.lists(
        one
        | st.tuples(one, st.integers(1, 20)).map(lambda cut: cut[0][: cut[1]])
        | st.tuples(one, st.integers(1, 20)).map(lambda cut: cut[0][cut[1] :])
        | st.text(max_size=3),
        max_size=5,
    ).map("".join)


hostile = hostile_to(CONTROL_STRINGS)
calls = st.builds(
    ToolCall,
    name=st.sampled_from(["look", "ask"]),
    arguments=st.dictionaries(st.sampled_from("ab"), harmless, max_size=2),
)


@st.composite
def rounds(
    draw: st.DrawFn, *, most: int = 3, user: bool = True, both: bool = True, text: bool = True
) -> tuple[Message, tuple[Message, ...]]:
    """An action and what answers it: one result for each call, else a user message; sometimes both."""
    made = tuple(draw(st.lists(calls, min_size=0 if user else 1, max_size=most)))
    said = draw(st.sampled_from(["", "Let me see.", "Hm…\n\nwell"] if text else [""])) if made else "I think so."
    action = Message(role="assistant", content=(TextBlock(text=said),), calls=made)
    answers = [text_message("tool", draw(harmless), name=call.name) for call in made]
    if not made or (both and draw(st.integers(0, 4)) == 0):
        answers.append(text_message("user", draw(harmless)))
    return action, tuple(answers)
