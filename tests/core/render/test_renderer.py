"""The renderer on published ChatML templates: what it appends is what the template would have printed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from orl_core.errors import RenderError
from orl_core.messages import ImageBlock, Message, ParseFailure, TextBlock, ToolCall, ToolSpec, text_message
from orl_core.render import Renderer
from orl_core.render.conversation import for_template
from orl_core.tools.format import for_chat_template
from orl_rollout.tokenizer.tokenizer import HFTokenizer

from tests.core.render.conversations import TEMPLATES, harmless
from tests.kit.tokenizers import build, renderer_of, tokenizer

GOLDEN = Path(__file__).parents[2] / "golden"
SCHEMA: dict[str, Any] = {"type": "object", "properties": {"who": {"type": "string", "description": "a <name>"}}}
TOOLS = (ToolSpec(name="accuse", description="Name the culprit.", parameters=SCHEMA), ToolSpec(name="look"))
USER = text_message("user", "Who did it?")
RESULTS = (text_message("tool", "A knife.\n", name="look"), text_message("tool", '{"alibi": null}', name="ask"))


def ids_of(name: str, text: str) -> tuple[int, ...]:
    return tuple(tokenizer(name).encode_joint(text))


def text(tok: HFTokenizer, messages: list[Message], *, prompt: bool, tools: Any = None) -> str:
    return tok.apply_chat_template(for_template(messages, str), tools=tools, add_generation_prompt=prompt)


@pytest.mark.parametrize("name", TEMPLATES)
def test_golden_opening_and_extensions(name: str) -> None:
    """The wire format of every family, as text, in tests/golden."""
    renderer, tok = renderer_of(name), tokenizer(name)
    closed = ids_of(name, "<|im_end|>")
    shown = {
        "open": renderer.open((text_message("system", "Be brief."), USER), TOOLS),
        "open without tools": renderer.open((USER,), ()),
        "two results": renderer.extend(closed, RESULTS, calls_before=0),
        "result and user": renderer.extend(closed, (RESULTS[0], USER), calls_before=0),
        "user": renderer.extend(closed, (USER,), calls_before=0),
        "user after an action cut short": renderer.extend((1, 2), (USER,), calls_before=0),
    }
    expected = json.loads((GOLDEN / f"render_{name}.json").read_text(encoding="utf-8"))
    assert {what: tok.decode(ids) for what, ids in shown.items()} == expected


@pytest.mark.parametrize("name", TEMPLATES)
@given(first=harmless, description=harmless, system=st.none() | harmless)
def test_an_opening_of_harmless_text_is_the_templates_own(
    name: str, first: str, description: str, system: str | None
) -> None:
    tok = tokenizer(name)
    messages = [*([text_message("system", system)] if system is not None else []), text_message("user", first)]
    tools = [{"type": "function", "function": {"name": "f", "description": description, "parameters": SCHEMA}}]
    expected = tok.encode_joint(text(tok, messages, prompt=True, tools=tools))
    spec = ToolSpec(name="f", description=description, parameters=SCHEMA)
    assert renderer_of(name).open(tuple(messages), (spec,)) == tuple(expected)


def test_an_image_is_refused_by_its_place() -> None:
    image = ImageBlock(data="aGk=", mime_type="image/png")
    shown = Message(role="tool", name="look", content=(TextBlock(text="See:"), image))
    with pytest.raises(RenderError, match=r"block 1 of message 0 \(tool `look`\) is an image \(image/png\)"):
        renderer_of("qwen3").extend((), (shown,), calls_before=0)
    with pytest.raises(RenderError, match=r"block 0 of message 1 \(user\) is an image"):
        renderer_of("qwen3").open((USER, Message(role="user", content=(image,))), ())


@pytest.mark.parametrize("messages", [(), (text_message("system", "x"),), (text_message("assistant", "x"),)])
def test_what_cannot_follow_an_action_is_refused(messages: tuple[Message, ...]) -> None:
    with pytest.raises(RenderError, match="an action is followed by tool and user messages, not by"):
        renderer_of("qwen3").extend((), messages, calls_before=0)


ALIKE = (1, True, 1.0, "1", None, {"a": 1, "b": 2}, {"b": 2, "a": 1}, [1], [True])


@given(st.lists(st.sampled_from(ALIKE) | st.integers(0, 40), max_size=60))
def test_kept_openings_are_those_of_their_own_text(defaults: list[Any]) -> None:
    """Values that are equal in Python read differently, and so do mappings in another order."""
    renderer, tok = renderer_of("qwen3"), tokenizer("qwen3")
    for default in defaults:
        spec = ToolSpec(name="f", parameters={"type": "object", "properties": {"x": {"default": default}}})
        opening = renderer.open((USER,), (spec,))
        assert opening == ids_of("qwen3", text(tok, [USER], prompt=True, tools=for_chat_template((spec,))))
        assert renderer.open([text_message("user", "Who did it?")], [spec]) is opening


def test_lone_surrogates_are_replaced() -> None:
    renderer, tok = renderer_of("qwen3"), tokenizer("qwen3")
    bad = ToolSpec(name="f", description="\ud800", parameters={"type": "object", "properties": {"\udfff": {}}})
    assert "a\ufffdb" in tok.decode(renderer.open((text_message("user", "a\ud800b"),), (bad,)))
    assert "a\ufffdb" in tok.decode(renderer.extend((), (text_message("tool", "a\udc00b"),), calls_before=0))
    assert renderer.cut("a\ud800b", 100) == "a\ufffdb"


def test_a_system_prompt_template_replaces_the_templates_tools() -> None:
    tok = tokenizer("qwen3")
    renderer = Renderer(
        tok, system_prompt_template="Tools, one {{line}} each:\n{tools}\nCall: <tool_call>…</tool_call>"
    )
    ids = renderer.open((text_message("system", "Extra <tool_call>."), USER), TOOLS)
    shown = tok.decode(ids)
    assert shown.startswith(
        '<|im_start|>system\nTools, one {line} each:\n{"name": "accuse", "arguments_schema": {"type": "object", '
    )
    assert "Call: <tool_call>…</tool_call>\n\nExtra <tool_call>.<|im_end|>\n<|im_start|>user" in shown
    assert "# Tools" not in shown
    # The run's own template may use control tokens; a text from the environment may not.
    assert ids.count(tok.added_tokens["<tool_call>"]) == 1


def test_parse_reads_calls_text_and_reasoning() -> None:
    said = (
        '<think>\nHm.\n</think>\n\nSo:\n<tool_call>\n{"name": "look", "arguments": {"x": 1}}\n</tool_call><tool_call>{'
    )
    for name in TEMPLATES:
        for stop in ("", "<|im_end|>", "<|endoftext|>"):
            action = renderer_of(name).parse(ids_of(name, said + stop))
            assert (action.text, action.reasoning) == ("So:", "Hm.")
            call, failure = action.calls
            assert call == ToolCall(name="look", arguments={"x": 1})
            assert isinstance(failure, ParseFailure)


def parts_of(name: str, said: str) -> list[tuple[str, str]]:
    """The parts that `read` finds in a text, and what their ids say."""
    ids = ids_of(name, said)
    action, spans = renderer_of(name).read(ids)
    assert action == renderer_of(name).parse(ids)
    return [(span.part, tokenizer(name).decode(ids[span.start : span.end])) for span in spans or ()]


@pytest.mark.parametrize("name", TEMPLATES)
def test_read_tells_reasoning_and_calls_from_text(name: str) -> None:
    thought, first = "<think>\nHm.\n</think>", '<tool_call>\n{"name": "look"}\n</tool_call>'
    assert parts_of(name, "Yes.<|im_end|>") == []
    assert parts_of(name, f"{thought}So:{first}\n{first}<|im_end|>") == [
        ("reasoning", thought),
        ("calls", f"{first}\n"),
        ("calls", f"{first}<|im_end|>"),
    ]
    inside = '<tool_call>\n{"name": "look", "arguments": {"x": "</tool_call>"}}\n</tool_call>'
    assert parts_of(name, f"{inside}.") == [("calls", inside)]
    assert parts_of(name, "<think>Hm.<|im_end|>") == [("reasoning", "<think>Hm.<|im_end|>")]


def test_hide_takes_reasoning_and_its_opening_out_of_a_turn() -> None:
    tok = HFTokenizer(build((GOLDEN / "opens_think.jinja").read_text(encoding="utf-8")))
    renderer = Renderer(tok, system_prompt_template="{tools}")
    assert renderer.strips
    assert not renderer_of("qwen2_5").strips
    observation = renderer.open((USER,), TOOLS)
    action_ids = tok.encode_joint("Hm.\n</think>\n\nYes.<think>Or no.<|im_end|>")
    _, spans = renderer.read(action_ids)
    hidden = renderer.hide(observation, action_ids, spans or ())
    ids = (*observation, *action_ids)
    assert [tok.decode(ids[start:end]) for start, end in hidden] == ["<think>\nHm.\n</think>\n\n", "<think>Or no."]
    left = [token for index, token in enumerate(ids) if not any(start <= index < end for start, end in hidden)]
    assert tok.decode(left).endswith("<|im_start|>assistant\nYes.<|im_end|>")


@given(st.lists(st.integers(0, 2**20)))
def test_parse_is_total(ids: list[int]) -> None:
    renderer_of("qwen3").parse(ids)


@given(st.text(max_size=300), st.integers(1, 120))
def test_cut_keeps_what_fits_and_marks_what_does_not(said: str, budget: int) -> None:
    renderer, tok = renderer_of("qwen3"), tokenizer("qwen3")
    kept = renderer.cut(said, budget)
    if len(tok.encode([said])[0]) <= budget:
        assert kept == said
    else:
        _, marker, rest = kept.partition("\n[… cut here")
        assert marker
        assert rest == ": the result is longer than its budget]"
        assert len(tok.encode([kept])[0]) <= max(budget, len(tok.encode([marker + rest])[0])) + 2


def test_cut_is_bounded_by_the_budget_not_by_the_text() -> None:
    assert len(renderer_of("qwen3").cut("word " * 1_000_000, 100)) < 1000
