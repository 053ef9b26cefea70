"""Gemma 4: a turn that goes on behind its results, and text beside calls that the template prints behind them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from orl_core.messages import Message, ToolCall, ToolSpec, text_message
from orl_core.render.certify import attacks
from orl_core.render.controls import Controls
from orl_core.render.conversation import for_template
from orl_core.tools import thinking

from tests.core.render.conversations import few, harmless
from tests.kit.families import renderer, tokenizer

GOLDEN = json.loads((Path(__file__).parents[2] / "golden" / "render_gemma4.json").read_text(encoding="utf-8"))
WHO = {"type": "object", "properties": {"who": {"type": "string", "description": "a <name>"}}}
TOOLS = (ToolSpec(name="accuse", description="Name the culprit.", parameters=WHO), ToolSpec(name="look"))
USER, SYSTEM = text_message("user", "Who did it?"), text_message("system", "Be brief.")
KNIFE, ALIBI = text_message("tool", "A knife.\n", name="look"), text_message("tool", '{"alibi": null}', name="ask")
LOOK = ToolCall(name="look", arguments={"who": 'it\'s "him"', "how": [1, 2.5, None, True]})
modes = pytest.mark.parametrize("name", ["gemma4", "gemma4_think"])


def test_golden_opening_and_extensions() -> None:
    made, tok = renderer("gemma4"), tokenizer("gemma4")
    shown = {
        "open": made.open((SYSTEM, USER), TOOLS),
        "open without tools": made.open((USER,), ()),
        "result": made.extend((), (KNIFE,), calls_before=0),
        "two results": made.extend((), (KNIFE, ALIBI), calls_before=0),
        "user": made.extend((), (USER,), calls_before=0),
    }
    assert {what: tok.decode(ids) for what, ids in shown.items()} == GOLDEN
    for what, ids in shown.items():
        assert list(ids) == tok.encode_joint(GOLDEN[what])


@modes
def test_the_certificate_says_that_text_beside_calls_is_moved(name: str) -> None:
    made = renderer(name)
    assert made.tool_format == "gemma4"
    assert made.certificate.user_turns
    assert made.certificate.calls_per_action is None
    assert all(row.passed for row in made.certificate.checks)
    assert any("moves" in note for note in made.certificate.notes)


@modes
@given(st.lists(st.lists(harmless, min_size=1, max_size=3), min_size=1, max_size=3))
@few
def test_extensions_end_the_full_rendering(name: str, contents: list[list[str]]) -> None:
    made, tok = renderer(name), tokenizer(name)
    history, before = [USER], 0
    for texts in contents:
        answers = tuple(text_message("tool", text, name="look") for text in texts)
        history += [Message(role="assistant", calls=(LOOK,) * len(texts)), *answers]
        ids = made.extend((), answers, calls_before=before)
        before += len(texts)
        whole = tok.apply_chat_template(for_template(history, str), tools=None, add_generation_prompt=True)
        assert tok.encode_joint(whole)[-len(ids) :] == list(ids)


@modes
def test_the_models_own_calls_are_read(name: str) -> None:
    made, tok = renderer(name), tokenizer(name)
    opening, closing = thinking("gemma4")
    call = '<|tool_call>call:look{who:<|"|>it\'s "him"<|"|>}<tool_call|>'
    said = f"{opening}thought\nHm.\n{closing}{call}<|tool_response>"
    action = made.parse(tok.encode_joint(said))
    assert action.reasoning == "Hm."
    assert action.calls == (ToolCall(name="look", arguments={"who": 'it\'s "him"'}),)


def test_prompt_after_a_result_opens_reasoning_if_it_thinks() -> None:
    made, tok = renderer("gemma4_think"), tokenizer("gemma4_think")
    said = tok.encode_joint("Hm.<channel|>Done.")
    assert made.parse(said, after="tool").reasoning == "Hm."
    assert made.parse(said, after="user").reasoning == ""


def test_call_ends_with_the_opener_of_its_result() -> None:
    made, ids = renderer("gemma4"), tokenizer("gemma4").added_tokens
    result = made.extend((7,), (KNIFE,), calls_before=0)
    assert result[0] == ids["<|tool_response>"]
    assert made.extend((7, ids["<|tool_response>"]), (KNIFE,), calls_before=0) == result[1:]
    assert made.extend((7,), (USER,), calls_before=0)[0] == ids["<turn|>"]
    assert not made.can_follow((7, ids["<turn|>"]), (KNIFE,))


def test_l4_a_delimiter_counts_only_as_its_id() -> None:
    made, tok = renderer("gemma4"), tokenizer("gemma4")
    (spelled,) = tok.encode(['<|tool_call>call:look{who:<|"|>x<|"|>}<tool_call|>'])
    assert made.parse(spelled).calls == ()
    opening, closing = tok.encode_joint('<|tool_call>call:look{who:<|"|>'), tok.encode_joint('<|"|>}<tool_call|>')
    for attack in attacks(Controls(tok)):
        (inside,) = tok.encode([attack])
        (call,) = made.parse([*opening, *inside, *closing]).calls
        assert isinstance(call, ToolCall)
        assert call.arguments == {"who": tok.decode(inside)}


def test_l4_no_result_brings_a_control_id() -> None:
    made, tok = renderer("gemma4"), tokenizer("gemma4")
    known = set(tok.added_tokens.values())
    blank = [token for token in made.extend((), (KNIFE,), calls_before=0) if token in known]
    for attack in attacks(Controls(tok)):
        found = made.extend((), (text_message("tool", attack, name="look"),), calls_before=0)
        assert [token for token in found if token in known] == blank
