"""Every recipe of the justfile, expanded: its commands start, and the files, extras and markers that it names exist.

What heavy modules import is shown by `test_imports`, so they start in the slow tests only.
"""

from __future__ import annotations

import re
import runpy
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from orl_core.config import load_config
from orl_launcher.cli import Parser
from orl_launcher.main import main

from tests.test_blocks import NIGHTLY, RECIPES

ROOT = Path(__file__).parents[1]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
MARKERS = {marker.split(":")[0] for marker in PROJECT["tool"]["pytest"]["ini_options"]["markers"]}
NAMED = {"--extra": PROJECT["project"]["optional-dependencies"], "--group": PROJECT["dependency-groups"]}
REQUIRED = {"release": ["0.2.0"]}
SLOW = ("nightly signals", "nightly environments")
OPERATORS = {"&&", "||", ";", "|", "if", "then", "else", "fi"}
OURS = re.compile(r"(?:tests|tools|configs|examples|packages|apps)/[\w./-]+")


def commands_of(*words: str) -> Iterator[list[str]]:
    """Yield the commands that a recipe runs, those of other recipes too."""
    done = subprocess.run(["just", "--dry-run", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for line in done.stderr.splitlines():
        command: list[str] = []
        lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        for word in (*lexer, ";"):
            if word not in OPERATORS:
                command.append(word)
            elif command:
                inner = command[0] == "just" and not command[1].startswith("-")
                yield from commands_of(*command[1:]) if inner else [command]
                command = []


def start(words: list[str]) -> None:
    """Start a command of ours with --help. Hold what it names against what is there."""
    for option, value in pairwise(words):
        assert value in NAMED.get(option, (value,)), f"{option} {value}"
    for path in OURS.findall(" ".join(words)):
        assert (ROOT / path).exists(), path
    words = [word for word in words if word != "$@"]
    programs = [Path(word).name for word in words]
    if words[0] == "[" or words[1:2] == ["pip"]:
        return
    if "pytest" in programs:
        expressions = [value for option, value in pairwise(words) if option == "-m" and value != "pytest"]
        assert {name for one in expressions for name in compile(one, "-m", "eval").co_names} <= MARKERS
    elif "orl" in programs:
        with pytest.raises(SystemExit, match=r"^0$"):
            main([*words[programs.index("orl") + 1 :], "--help"])
    elif "-m" in words:
        start_module(*words[words.index("-m") + 1 :])


def start_module(name: str, *arguments: str) -> None:
    spec = find_spec(name)
    if spec is not None and spec.submodule_search_locations:
        spec = find_spec(f"{name}.__main__")
    assert spec is not None, name
    assert spec.origin is not None
    if name.startswith(("tests", "tools", "benchmarks")) and "argparse" in Path(spec.origin).read_text("utf-8"):
        sys.argv = [name, *arguments, "--help"]
        with pytest.raises(SystemExit, match=r"^0$"):
            runpy.run_path(spec.origin, run_name="__main__")


ALL = [*(name for name in RECIPES if name != "nightly"), *(f"nightly {name}" for name in NIGHTLY)]


@pytest.mark.parametrize(
    "recipe", [pytest.param(recipe, marks=[pytest.mark.slow] * (recipe in SLOW)) for recipe in ALL]
)
def test_commands_of_a_recipe_start(recipe: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [])
    commands = [*commands_of(*recipe.split(), *REQUIRED.get(recipe, ()))]
    assert commands
    for words in commands:
        start(words)


@pytest.mark.parametrize(
    ("recipe", "trainer"),
    [
        ("prepare", "local"),
        ("train-local", "local"),
        ("train-real", "local"),
        ("train-slime", "slime"),
        ("train-miles", "miles"),
    ],
)
def test_bare_recipe_has_a_configuration(recipe: str, trainer: str) -> None:
    *_, command = commands_of(recipe)
    name, *words = (word for word in command[command.index("orl") + 1 :] if word != "$@")
    config = load_config(ROOT / Parser(name, words).parse().config)
    assert config.trainer.backend == trainer


def test_failed_command_of_a_recipe_has_the_last_word() -> None:
    done = subprocess.run(["just", "--shell", "false", "train-slime"], cwd=ROOT, capture_output=True, check=False)
    assert done.returncode == 1
    assert b"error" not in done.stderr


def test_list_fits_a_screen_and_names_every_suite() -> None:
    listed = subprocess.check_output(["just", "--list"], cwd=ROOT, text=True).splitlines()
    assert len(RECIPES) <= 24
    assert len(listed) <= 50
    (nightly,) = [line for line in listed if line.strip().startswith("nightly ")]
    assert nightly.partition("# ")[2].split() == sorted(NIGHTLY)


def test_recipes_of_pages_exist() -> None:
    pages = [
        *ROOT.glob("[!C]*.md"),
        *ROOT.glob("docs/*.md"),
        *ROOT.glob("*/*/README.md"),
        *ROOT.glob(".github/**/*.yml"),
    ]
    named = [re.findall(r"(?:`|run: )just ([a-z-]+)(?: ([a-z0-9]+))?", page.read_text("utf-8")) for page in pages]
    found = [one for page in named for one in page]
    assert len(found) > 20
    assert [one for one in found if one[0] not in RECIPES or (one[0] == "nightly" and one[1] not in NIGHTLY)] == []


def test_bare_tasks_script_says_the_command_to_type() -> None:
    done = subprocess.run(
        ["sh", "examples/environments/train.sh"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "train.sh reasoning-gym" in done.stderr


@pytest.mark.parametrize(
    "line",
    [
        "uv run --extra gone orl show",
        "uv run orl gone",
        "python -m gone",
        "pytest tests/gone",
        "pytest -m 'slow and not gone'",
    ],
)
def test_negative_control_what_is_gone_is_found(line: str) -> None:
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        start(shlex.split(line))
