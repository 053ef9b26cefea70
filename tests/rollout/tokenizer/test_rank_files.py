"""Rank files that would lose a token are refused. Those that are read stand in test_pretrained.py."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest
from orl_core.errors import RenderError
from orl_rollout.tokenizer.rank_files import read_tiktoken

from tests.kit.checkpoints import kimi, ranks


@pytest.mark.parametrize("line", ["YWI= -1", "YWI= 100000", "YQ== 97"], ids=["negative", "far", "a byte"])
def test_ranks_that_name_a_token_twice_are_refused(line: str, tmp_path: Path) -> None:
    folder = kimi(tmp_path)
    file = folder / "tiktoken.model"
    file.write_text(f"{line}\n{file.read_text()}{base64.b64encode(b'ab').decode()} {len(ranks())}\n")
    with pytest.raises(RenderError, match=f"the token {line[:4]} stands twice"):
        read_tiktoken(file, folder / "tokenization_kimi.py", {})
