"""The uses in orl-rollout's README run unchanged, each on its own, with a small checkpoint for a real one."""

import re
from pathlib import Path

import pytest

from tests.kit.tokenizers import build, template

README = Path(__file__).parents[2] / "packages" / "orl-rollout" / "README.md"
BLOCKS = dict(re.findall(r"^## ([^\n]+)\n(?:(?!^## ).)*?^```python\n(.*?)^```", README.read_text("utf-8"), re.M | re.S))


def test_the_uses_are_there():
    assert list(BLOCKS) == [
        "Play one episode",
        "Play on OpenReward, and keep what was played",
        "Test what you build against faults",
    ]
    assert README.read_text("utf-8").count("```python") == len(BLOCKS)


def test_every_module_is_named_in_the_table():
    package = README.parent / "src" / "orl_rollout"
    modules = {path.stem for path in package.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    table = README.read_text("utf-8").partition("\n\n##")[0]
    internal = {"__init__", "edge", "functions", "logs"}
    assert modules - internal == {name for name in modules if f"`{name}`" in table}


@pytest.mark.parametrize("use", BLOCKS)
def test_a_use_runs_as_it_stands(use: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    build(template("qwen3")).save_pretrained(tmp_path / "Qwen" / "Qwen3-0.6B")
    assert "assert " in BLOCKS[use]
    exec(compile(BLOCKS[use], f"{README.name}: {use}", "exec"), {"__name__": "readme"})
