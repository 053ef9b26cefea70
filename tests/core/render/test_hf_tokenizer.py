"""The tokenizer over a Hugging Face checkpoint: loaded from a folder, nothing fetched."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from orl_core.errors import ConfigError, RenderError
from orl_core.render import Renderer
from orl_rollout.tokenizer.tokenizer import HFTokenizer, load_tokenizer
from tokenizers.pre_tokenizers import Metaspace
from transformers import ByT5Tokenizer

from tests.core.render.conversations import hostile
from tests.kit.families import MISTRAL_SPM
from tests.kit.families import tokenizer as family_tokenizer
from tests.kit.tokenizers import build, template, tokenizer

USER = [{"role": "user", "content": "Hi."}]


def saved(folder: Path, source: str = "") -> Path:
    build(source or template("qwen3")).save_pretrained(folder)
    return folder


def test_a_saved_checkpoint_renders_as_the_one_in_memory(tmp_path: Path) -> None:
    loaded, built = load_tokenizer(saved(tmp_path)), tokenizer("qwen3")
    assert dict(loaded.added_tokens) == dict(built.added_tokens)
    assert loaded.stop_ids == (built.added_tokens["<|im_end|>"],)
    messages: list[dict[str, Any]] = [*USER, {"role": "assistant", "content": "Yes."}, *USER]
    text = loaded.apply_chat_template(messages, tools=None, add_generation_prompt=True)
    assert text == built.apply_chat_template(messages, tools=None, add_generation_prompt=True)
    assert loaded.encode_joint(text) == built.encode_joint(text)
    assert loaded.decode(loaded.encode_joint(text)) == text
    assert Renderer(loaded).certificate.passed


@pytest.mark.parametrize("eos", [7, [7, 9]])
def test_the_generation_configs_stops_count(tmp_path: Path, eos: int | list[int]) -> None:
    (saved(tmp_path) / "generation_config.json").write_text(json.dumps({"eos_token_id": eos}))
    end = tokenizer("qwen3").added_tokens["<|im_end|>"]
    assert load_tokenizer(tmp_path).stop_ids == (*([eos] if isinstance(eos, int) else eos), end)


def test_base_checkpoint_ends_a_turn_as_its_template_does() -> None:
    """Base checkpoints have the template of their instruct models, and name only the end of a document."""
    base = build(template("qwen3"))
    base.eos_token = "<|endoftext|>"
    tok = HFTokenizer(base)
    end, document = tok.added_tokens["<|im_end|>"], tok.added_tokens["<|endoftext|>"]
    assert (tok.turn_end, tok.stop_ids) == ("<|im_end|>", (end, document))
    renderer = Renderer(tok)
    assert renderer.certificate.passed
    assert set(renderer.stop_ids) == {end, document}
    assert tokenizer("qwen3").turn_end == ""


def test_opening_of_the_next_turn_is_no_end_of_a_turn() -> None:
    """Without another message nothing follows: the model would have to begin the user's turn."""
    opened = "{% for m in messages %}{{ '<|im_start|>' + m.role + m.content }}{% endfor %}"
    assert HFTokenizer(build(opened)).turn_end == ""


def test_stop_tokens_are_added_tokens(tmp_path: Path) -> None:
    tok = load_tokenizer(saved(tmp_path), stop_tokens=["<|endoftext|>"])
    assert tok.stop_ids == (tok.added_tokens["<|endoftext|>"], tok.added_tokens["<|im_end|>"])
    with pytest.raises(ConfigError, match=r"stop_tokens.*<|im_end|>"):
        load_tokenizer(tmp_path, stop_tokens=["<|im_ends|>"])


def test_thinking_reaches_the_template(tmp_path: Path) -> None:
    saved(tmp_path)
    prompts = [
        load_tokenizer(tmp_path, thinking=thinking).apply_chat_template(USER, tools=None, add_generation_prompt=True)
        for thinking in (False, True)
    ]
    assert [prompt.endswith("</think>\n\n") for prompt in prompts] == [True, False]


def test_the_clock_is_pinned_when_the_tokenizer_is_made() -> None:
    tok = HFTokenizer(build("{{ strftime_now('%Y-%m-%d %H:%M:%S.%f') }}"))
    shown = {tok.apply_chat_template(USER, tools=None, add_generation_prompt=True) for _ in range(3)}
    assert len(shown) == 1
    assert shown.pop().startswith("20")


def test_what_cannot_be_used_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(RenderError, match="ByT5Tokenizer is a slow tokenizer; rendering needs the fast form"):
        HFTokenizer(ByT5Tokenizer())  # type: ignore[arg-type]
    with pytest.raises(RenderError, match="has no chat template"):
        HFTokenizer(build(""))
    with pytest.raises(RenderError, match=r"loading the tokenizer of .*nowhere"):
        load_tokenizer(tmp_path / "nowhere")
    with pytest.raises(RenderError, match="compiling the chat template"):
        HFTokenizer(build("{% if %}"))


def test_sentence_piece_has_no_mark_after_a_control_token() -> None:
    tok = family_tokenizer("mistral_v0_3")
    end = tok.added_tokens["</s>"]
    for text in ("a", " a", " ", "The door", " The door "):
        (ids,) = tok.encode([text])
        assert [end, *ids] == tok.encode_joint("</s>" + text)
        assert tok.decode(ids) == text


def test_one_that_sets_a_mark_before_every_text_is_refused() -> None:
    hf = build(template("mistral_v0_3"), vocabulary=MISTRAL_SPM)
    hf.backend_tokenizer.pre_tokenizer = Metaspace(prepend_scheme="always", split=False)
    with pytest.raises(RenderError, match=r"check 5: '.*' becomes .* and comes back as"):
        Renderer(HFTokenizer(hf))


@given(hostile | st.text())
def test_no_text_becomes_an_added_token(text: str) -> None:
    tok = tokenizer("qwen3")
    (ids,) = tok.encode([text])
    assert not set(ids) & set(tok.added_tokens.values())
