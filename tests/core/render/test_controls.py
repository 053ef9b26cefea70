"""Control strings in a text: the leftmost and longest one counts, however many there are and however they overlap."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from orl_core.render import Renderer
from orl_core.render.controls import Controls
from orl_rollout.tokenizer.tokenizer import HFTokenizer

from tests.kit.tokenizers import QWEN3_ADDED, build, template

short = st.text("ab<|", min_size=2, max_size=5)


class Vocabulary:
    """A tokenizer of which only the added tokens are looked at."""

    def __init__(self, texts: set[str]) -> None:
        self.added_tokens = {text: token for token, text in enumerate(sorted(texts))}


@given(texts=st.sets(short, max_size=8), said=st.text("ab<|", max_size=30))
def test_the_leftmost_and_longest_counts(texts: set[str], said: str) -> None:
    controls = Controls(Vocabulary(texts))  # type: ignore[arg-type]
    longest_first = "|".join(map(re.escape, sorted(texts, key=len, reverse=True))) or "(?!)"
    assert controls.split(said) == re.split(f"({longest_first})", said)
    assert controls.sequence(controls.guard(said, "\ue000")) == []


@given(texts=st.sets(short, max_size=8), said=st.text("ab<|", max_size=10), beside=st.text("ab<|", max_size=10))
def test_guarded_text_forms_no_control_string_at_its_edges(texts: set[str], said: str, beside: str) -> None:
    controls = Controls(Vocabulary(texts))  # type: ignore[arg-type]
    guarded = controls.guard(said, "\ue000")
    assert controls.sequence(beside + guarded) == controls.sequence(guarded + beside) == controls.sequence(beside)


@pytest.mark.slow
def test_a_thousand_reserved_tokens_are_certified() -> None:
    reserved = [f"<|reserved_special_token_{number}|>" for number in range(1000)]
    renderer = Renderer(HFTokenizer(build(template("qwen3"), (*QWEN3_ADDED, *reserved))))
    assert renderer.certificate.passed
