"""Every path that AGENTS.md and README.md name exists, links lead somewhere, pages hold what the program has."""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
from pathlib import Path

import pytest
from orl_launcher.main import COMMANDS

from tests.reference import commands, errors

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


LINKED = sorted(
    path for pattern in ("*.md", "docs/**/*.md", "*/*/README.md", "benchmarks/*.md") for path in ROOT.glob(pattern)
)
LINK = re.compile(r"\]\(([^)\s#]+)(?:#[\w-]+)?\)")


@pytest.mark.parametrize("document", LINKED, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_links_lead_to_files(document: Path):
    links = [link for link in LINK.findall(document.read_text("utf-8")) if not re.match(r"\w+:", link)]
    ends = [(document.parent / link).resolve().relative_to(ROOT.resolve()) for link in links]
    assert [end for end in ends if not (ROOT / end).exists()] == []  # pages that the site makes are dead on a code host


def test_links_are_found():
    assert sum(len(LINK.findall(path.read_text("utf-8"))) for path in LINKED) > 50


def test_messages_of_troubleshooting_are_the_programs():
    page = (ROOT / "docs" / "troubleshooting.md").read_text("utf-8")
    sources = [path for place in ("packages", "apps") for path in (ROOT / place).glob("*/src/**/*.py")]
    program = re.sub(r"\"\s+f?\"", "", "\n".join(path.read_text("utf-8") for path in sources))
    words = [said for line in page.splitlines() if line.startswith('| "') for said in re.findall(r'"([^"]+)"', line)]
    assert len(words) > 10
    assert [said for said in words if said not in program and "OPENAI_API_KEY" not in said] == []


def test_dependencies_have_a_reason():
    files = [*ROOT.glob("packages/*/pyproject.toml"), *ROOT.glob("apps/*/pyproject.toml")]
    projects = [tomllib.loads(file.read_text("utf-8"))["project"] for file in files]
    words = [word for one in projects if one["name"] != "orl-testing" for word in one["dependencies"]]
    table = (ROOT / "docs" / "maintainers.md").read_text("utf-8").partition("| third-party package |")[2]
    names = [name for line in table.splitlines()[2:] for name in line.split("|")[1].split(",")]
    assert sorted(map(str.strip, names)) == sorted({re.split("[<>=]", word)[0] for word in words if "orl-" not in word})


APART = ("configuration.md", "models.md", "evidence.md")  # two are generated, evidence has a budget of its own
MOST_WORDS, MOST_EVIDENCE = 11_000, 2_500


def words_in(*pages: Path) -> int:
    return sum(bool(re.search(r"\w", word)) for page in pages for word in page.read_text("utf-8").split())


def test_pages_have_a_budget_of_words():
    """A page that is added is paid for by pages that become shorter."""
    pages = [ROOT / "README.md", *(page for page in (ROOT / "docs").glob("*.md") if page.name not in APART)]
    assert words_in(*pages) <= MOST_WORDS
    assert words_in(ROOT / "docs" / "evidence.md") <= MOST_EVIDENCE


def test_default_environment_has_cluster_adapters_and_no_torch():
    exported = subprocess.run(
        [os.environ.get("UV", "uv"), "export", "--frozen", "--no-hashes", "--no-annotate", "--quiet"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    ).stdout.splitlines()
    assert {"-e ./packages/orl-slime", "-e ./packages/orl-miles", "-e ./apps/launcher"} <= set(exported)
    assert [line for line in exported if line.split("==")[0] in ("torch", "trl", "ray")] == []


def test_page_of_commands_is_the_same_however_it_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    page = commands.page()
    assert [line.removeprefix("## orl ") for line in page.splitlines() if line.startswith("## ")] == [*COMMANDS]
    monkeypatch.setenv("UV_RUN_RECURSION_DEPTH", "1")
    monkeypatch.setenv("COLUMNS", "40")
    assert commands.page() == page


def test_page_of_errors_has_messages_of_every_area() -> None:
    sections = errors.page().split("\n## ")[2:]
    assert [section.split("\n", 1)[0] for section in sections] == [*errors.AREAS]
    assert sum(section.count("\n- ") for section in sections) > 250
    assert "``… exists already. Choose another --name``" in sections[0]
