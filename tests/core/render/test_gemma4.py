"""Gemma 4: a turn that goes on behind its results, and text beside calls that the template prints behind them."""

from __future__ import annotations

import pytest
from orl_core.messages import ToolCall, text_message
from orl_core.render.certify import attacks
from orl_core.render.controls import Controls
from orl_core.tools import thinking

from tests.kit.families import renderer, tokenizer

USER = text_message("user", "Who did it?")
KNIFE = text_message("tool", "A knife.\n", name="look")
modes = pytest.mark.parametrize("name", ["gemma4", "gemma4_think"])


@modes
def test_the_certificate_says_that_text_beside_calls_is_moved(name: str) -> None:
    made = renderer(name)
    assert any("moves" in note for note in made.certificate.notes)


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
