"""The uses in orl-core's README run unchanged, each on its own."""

import re
from pathlib import Path

import pytest

README = Path(__file__).parents[2] / "packages" / "orl-core" / "README.md"
BLOCKS = dict(re.findall(r"^## ([^\n]+)\n(?:(?!^## ).)*?^```python\n(.*?)^```", README.read_text("utf-8"), re.M | re.S))


def test_each_use_is_there():
    assert list(BLOCKS) == ["Show tools", "Parse a reply", "Mask a conversation", "Reduce rewards"]
    assert README.read_text("utf-8").count("```python") == len(BLOCKS)


@pytest.mark.parametrize("use", BLOCKS)
def test_a_use_runs_as_it_stands(use: str):
    assert "assert " in BLOCKS[use]
    exec(compile(BLOCKS[use], f"{README.name}: {use}", "exec"), {"__name__": "readme"})
