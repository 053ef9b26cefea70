"""Every file and folder that AGENTS.md and README.md name exists."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PLACES = ("packages", "apps", "tests", "examples", "benchmarks", "configs", "docs")
FILES = [f"/{path.relative_to(ROOT)}" for place in PLACES for path in (ROOT / place).rglob("*") if path.is_file()]
NAME = re.compile(r"`([\w./-]+(?:\.(?:py|md)|/))`")


@pytest.mark.parametrize("document", ["AGENTS.md", "README.md"])
def test_named_paths_exist(document: str):
    text = (ROOT / document).read_text("utf-8")
    names = {*NAME.findall(text), *re.findall(r"\]\(([\w./-]+)\)", text)}
    missing = [
        name
        for name in sorted(names - {"tasks.jsonl"})
        if not (ROOT / name).exists() and not any(f"/{name}" in file for file in FILES)
    ]
    assert len(names) > 5
    assert not missing


def test_tree_of_the_readme_exists():
    tree = (ROOT / "README.md").read_text("utf-8").partition("## The tree")[2].split("```")[1]
    folder = ""
    for line in tree.strip().splitlines():
        name = line.split()[0]
        folder = "" if not line.startswith(" ") else folder
        assert (ROOT / folder / name).exists(), folder + name
        folder = folder or (name if len(line.split()) == 1 else "")
