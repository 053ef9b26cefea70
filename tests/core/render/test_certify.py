"""The certificate: what passes, what is refused and in which words, and a negative control for every kind of check."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from orl_core.errors import RenderError
from orl_core.messages import text_message
from orl_core.render import Renderer
from orl_rollout.tokenizer.tokenizer import HFTokenizer

from tests.core.render.conversations import TEMPLATES
from tests.kit.tokenizers import build, renderer_of, template

GOLDEN = Path(__file__).parents[2] / "golden"
QWEN3 = template("qwen3")


def refused(source: str, match: str) -> None:
    with pytest.raises(RenderError, match=match):
        Renderer(HFTokenizer(build(source)))


PUBLISHED = [
    pytest.param(name, marks=pytest.mark.published) for name in ("qwen2_5_training", "qwen3_training", "qwen3_vl")
]


@pytest.mark.parametrize("name", [*TEMPLATES, *PUBLISHED])
def test_chatml_templates_pass(name: str) -> None:
    certificate = renderer_of(name).certificate
    assert certificate.passed
    assert [check.check.split()[0] for check in certificate.checks] == [
        *("2", "3", "5", "4", "6", "7", "8", "9", "10", "12", "11", "12", "13", "parse")
    ]


def test_a_default_system_prompt_is_noted() -> None:
    (_, note) = renderer_of("qwen2_5").certificate.notes
    assert "You are Qwen, created by Alibaba Cloud" in note
    assert len(renderer_of("qwen3").certificate.notes) == 1


class _Leaky(HFTokenizer):
    """A tokenizer whose plain encoder knows the added tokens."""

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        return [self.encode_joint(text) for text in texts]


def test_a_plain_encoder_that_makes_control_ids_is_refused() -> None:
    with pytest.raises(RenderError, match=r"check 3, law L4: the plain encoder turns '<\|endoftext\|>' into \[\d+\]"):
        Renderer(_Leaky(build(QWEN3)))


class _Prefixing(HFTokenizer):
    """A tokenizer that puts an id before every text."""

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        return [[0, *ids] for ids in super().encode(texts)]


def test_an_encoder_that_adds_ids_is_refused() -> None:
    with pytest.raises(RenderError, match=re.escape("check 3, law L4: the plain encoder turns '' into [0]")):
        Renderer(_Prefixing(build(QWEN3)))


class _Splitting(HFTokenizer):
    """A tokenizer whose plain encoder never merges a newline."""

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        encode = super().encode
        return [[token for part in re.split("(\n)", text) for token in encode([part])[0]] for text in texts]


def test_a_splice_that_is_not_the_joint_encoding_is_refused() -> None:
    with pytest.raises(RenderError, match=r"check 4: tool content .* becomes \[.*\], the joint encoding is \["):
        Renderer(_Splitting(build(QWEN3)))


class _Lossy(HFTokenizer):
    def decode(self, ids: Sequence[int]) -> str:
        return super().decode(ids).strip()


def test_a_decoder_that_loses_text_is_refused() -> None:
    with pytest.raises(RenderError, match=r"check 5: ' ' becomes \[\d+\] and comes back as ''"):
        Renderer(_Lossy(build(QWEN3)))


def test_stop_ids_must_be_control_ids() -> None:
    with pytest.raises(RenderError, match=r"check 2, law L4: the stop ids \(5, \d+\) are not all added tokens"):
        Renderer(HFTokenizer(build(QWEN3), stop_ids=[5]))


def test_templates_beyond_the_plans_are_refused_with_the_reason() -> None:
    refused(
        QWEN3.replace('{"name": "', '{"nom": "'),
        '"nom": "look".* none of the parsers',
    )
    refused(QWEN3.replace("<|im_end|>", "[END]"), "<.im_end.> follows the assistant.*generation_config.*stop_tokens")
    refused(
        QWEN3.replace("{{- content }}", "{{- (content | tojson) if 'b' in content else content ~ message.name }}"),
        "changes the content of a tool message in a way that",
    )
    refused(QWEN3.replace("{{- content }}", "{{- content }}{{- content }}"), r"prints the new contents as \[0, 0\]")
    refused(QWEN3.replace("{{- content }}", "{{- loop.index ~ content }}"), "check 8: .* depends on the history")
    refused(
        QWEN3.replace("{{- content }}", "{{- (tools | length if tools else 0) ~ content }}"),
        "check 8: for tool messages after one user message, .* the tools ask, note",
    )
    refused((GOLDEN / "opens_think.jinja").read_text(encoding="utf-8"), "check 11: the chat template does not show")


@pytest.mark.parametrize(
    ("source", "name", "expected"),
    [
        ("content | trim", "stripped", 'a"b'),
        ("content.lstrip()", "left-stripped", 'a"b '),
        ("content | tojson", "a JSON string", '" a\\"b "'),
        ("content | replace('a', 'b')", "as the template prints it, asked each time", ' b"b '),
        ("content ~ ('' if content.endswith('.') else '.')", "as the template prints it, asked each time", ' a"b .'),
    ],
)
def test_what_a_template_does_to_contents_is_found_by_probing(source: str, name: str, expected: str) -> None:
    tok = HFTokenizer(build(QWEN3.replace("{{- content }}", "{{- " + source + " }}")))
    renderer = Renderer(tok)
    assert renderer.certificate.passed
    assert f"tool {name}" in next(check.detail for check in renderer.certificate.checks if check.check == "7 contents")
    assert f"\n{expected}\n" in tok.decode(renderer.extend((), (text_message("tool", ' a"b '),), calls_before=0))


def test_content_that_changes_its_surroundings_is_refused() -> None:
    source = QWEN3.replace("{{- content }}", "{{- content | replace('a', 'b') }}")
    renderer = Renderer(HFTokenizer(build(source + "{{- 'extra' if messages[-1].content == 'open sesame' }}")))
    with pytest.raises(RenderError, match="changes more than the content that it prints"):
        renderer.extend((), (text_message("tool", "open sesame"),), calls_before=0)
