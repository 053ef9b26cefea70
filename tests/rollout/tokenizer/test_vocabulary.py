"""The number of ids of a checkpoint: its tokenizer's, and those of the padding that its model can sample."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from orl_rollout.tokenizer.tokenizer import load_tokenizer

from tests.kit.tokenizers import build, template


@pytest.mark.parametrize(
    ("config", "more"),
    [
        (None, 0),
        ({"model_type": "qwen3"}, 0),
        ({"model_type": "qwen3", "vocab_size": 7}, 0),
        ({"model_type": "qwen3", "vocab_size": 1 << 20}, 1 << 20),
        ({"model_type": "qwen3_vl", "text_config": {"vocab_size": 1 << 20}}, 1 << 20),
        ({"model_type": "of nobody", "vocab_size": "many"}, 0),
    ],
    ids=str,
)
def test_vocabulary_holds_every_id_that_the_model_can_sample(config: Any, more: int, tmp_path: Path) -> None:
    tokenizer = build(template("qwen3"))
    tokenizer.save_pretrained(tmp_path)
    if config is not None:
        (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    known = max(tokenizer.get_vocab().values()) + 1
    assert load_tokenizer(tmp_path).vocabulary_size == max(known, more)
