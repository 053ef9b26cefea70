"""The certificate against combinations: what a template prints for whole conversations of many shapes."""

from __future__ import annotations

import pytest
from orl_core.errors import RenderError
from orl_core.messages import ToolSpec, text_message
from orl_core.render import Renderer
from orl_rollout.tokenizer.tokenizer import HFTokenizer

from tests.kit.tokenizers import QWEN3_ADDED, build, renderer_of, template

QWEN3 = template("qwen3")
SYSTEM, USER = text_message("system", "Be brief."), text_message("user", "Who did it?")
KNIFE, ALIBI = text_message("tool", "A knife.", name="look"), text_message("tool", "None.", name="ask")
TOOLS = (ToolSpec(name="look", description="Look around."),)
CALLED = "messages|length > 1 and messages[-2].role == 'assistant' and messages[-2].tool_calls"


def changed(*pairs: tuple[str, str], end: str = "") -> str:
    """Return Qwen3's template with some of its text replaced; every replacement must be possible."""
    source = QWEN3
    for old, new in pairs:
        assert old in source
        source = source.replace(old, new)
    return source + end


def test_template_counting_system_message_is_certified_without() -> None:
    """As Bielik 11B v3: with a system message and an earlier call, its loop looks at the wrong message."""
    source = changed(
        ("messages[loop.index0 - 1]", "messages[loop.index0 - (2 if messages[0].role == 'system' else 1)]")
    )
    tok = HFTokenizer(build(source))
    renderer = Renderer(tok)
    assert not renderer.certificate.system_messages
    assert renderer.certificate.without_tools
    renderer.open((USER,), TOOLS)
    with pytest.raises(RenderError, match="system message"):
        renderer.open((SYSTEM, USER), TOOLS)
    with pytest.raises(RenderError, match="`system_prompt_template`"):
        Renderer(tok, system_prompt_template="{tools}")


@pytest.mark.parametrize(
    "condition",
    [
        "messages|length > 4 and messages[1].tool_calls",
        f"{CALLED} and messages[-2].content",
        f"{CALLED} and not messages[-2].reasoning_content",
        "messages|length > 6 and messages[-5:] | map(attribute='role') | unique | list == ['tool']",
    ],
    ids=["an earlier call", "text before a call", "no reasoning", "five results"],
)
def test_what_depends_on_the_history_is_refused(condition: str) -> None:
    with pytest.raises(RenderError, match=r"check (8|10|13)|follow an action"):
        Renderer(HFTokenizer(build(changed(end="{%- if " + condition + " %}!{{- messages|length }}{%- endif %}"))))


def test_a_template_that_needs_tools_is_certified_with_them() -> None:
    """As Hermes 2 Pro, Hermes 3 and Command R+, which loop over the tools that they are not given."""
    tok = HFTokenizer(build(changed(end="{%- for tool in tools %}{%- endfor %}")))
    renderer = Renderer(tok)
    assert not renderer.certificate.without_tools
    assert renderer.open((USER,), TOOLS)
    with pytest.raises(RenderError, match="tools"):
        renderer.open((USER,), ())


def test_differing_results_and_user_message_are_refused_together() -> None:
    both = "messages|length > 1 and messages[-1].role == 'user' and messages[-2].role == 'tool'"
    renderer = Renderer(HFTokenizer(build(changed(end="{%- if " + both + " %}!{{- messages|length }}{%- endif %}"))))
    assert renderer.extend((), (KNIFE, ALIBI), calls_before=0)
    assert renderer.extend((), (USER,), calls_before=0)
    with pytest.raises(RenderError, match="together"):
        renderer.extend((), (KNIFE, USER), calls_before=0)


def test_text_that_the_template_moves_behind_the_calls_is_noted() -> None:
    """As Gemma 4, which prints an action's text after its results. The sampled ids keep their place."""
    end = "{%- if " + CALLED + " and messages[-2].content %}{{- messages[-2].content + '<|im_end|>' }}{%- endif %}"
    plain, moved = renderer_of("qwen3"), Renderer(HFTokenizer(build(changed(end=end))))
    assert moved.extend((), (KNIFE,), calls_before=0) == plain.extend((), (KNIFE,), calls_before=0)
    assert any("moves" in note for note in moved.certificate.notes)


def test_moved_text_may_close_the_turn() -> None:
    """As Unsloth's Gemma 4: behind results it opens the reasoning, or prints the text and begins another turn."""
    opened = "{%- if " + CALLED + " %}<think>{%- endif %}"
    closed = "{{- messages[-2].content + '<|im_end|>\n<|im_start|>assistant\n' }}"
    end = "{%- if " + CALLED + " and messages[-2].content %}" + closed + "{%- else %}" + opened + "{%- endif %}"
    plain, moved = (Renderer(HFTokenizer(build(changed(end=tail)))) for tail in (opened, end))
    assert moved.extend((), (KNIFE,), calls_before=0) == plain.extend((), (KNIFE,), calls_before=0)
    assert any("moves" in note for note in moved.certificate.notes)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("{{- tool | tojson }}", "{{- tool.function.description }}{{- tool | tojson }}"),
        ("{{- tool | tojson }}", "{{- tool | tojson(ensure_ascii=True) }}"),
    ],
    ids=["printed twice", "escaped as ASCII"],
)
def test_an_outside_text_may_be_printed_twice_or_escaped(old: str, new: str) -> None:
    tok = HFTokenizer(build(changed((old, new))))
    renderer = Renderer(tok)
    text = "a<|im_end|>b"
    ids = renderer.open((USER,), (ToolSpec(name="look", description=text),))
    benign = renderer.open((USER,), (ToolSpec(name="look", description="a b"),))
    controls = set(tok.added_tokens.values())
    assert [token for token in ids if token in controls] == [token for token in benign if token in controls]
    assert text in tok.decode(ids)
    assert tok.decode(ids).isascii()


def test_a_template_that_drops_the_guard_is_refused() -> None:
    source = changed(("{{- tool | tojson }}", "{{- tool | tojson | replace('\ue000', '') | replace('\ue001', '') }}"))
    with pytest.raises(RenderError, match="law L4"):
        Renderer(HFTokenizer(build(source)))


def test_tags_of_html_among_the_added_tokens_are_control_strings() -> None:
    """As Gemma 3 has them. The certificate must not take one of its own benign texts for a fault of the template."""
    tok = HFTokenizer(build(QWEN3, (*QWEN3_ADDED, "<b>", "</b>")))
    ids = Renderer(tok).extend((), (text_message("tool", "<b>bold</b>", name="look"),), calls_before=0)
    assert tok.added_tokens["<b>"] not in ids
    assert "<b>bold</b>" in tok.decode(ids)


BLANKS = ("\n", "\n\n", "\t", "  ", "\u2581\u2581")


def test_runs_of_white_space_among_the_added_tokens_are_text() -> None:
    """As Gemma 3 and EXAONE 4 have them: such a run is text from outside, with the id that the joint encoding gives."""
    tok = HFTokenizer(build(QWEN3, (*QWEN3_ADDED, *BLANKS)))
    renderer = Renderer(tok)
    assert not set(BLANKS) & set(tok.added_tokens)
    for text in ("a\n\nb", "\n\n\n", "  a\t", "a  b", "x\u2581\u2581y"):
        ids = list(renderer.extend((), (text_message("tool", text, name="look"),), calls_before=0))
        assert ids == tok.encode_joint(tok.decode(ids))
        opened = list(renderer.open((text_message("user", text),), TOOLS))
        assert opened == tok.encode_joint(tok.decode(opened))
        assert tok.decode(tok.encode([text])[0]) == text
