"""docs/promises.md: each row names tests, commands and pages that exist, and refusals in the program's own words."""

from __future__ import annotations

import ast
import re
from functools import cache

import pytest
from orl_launcher.main import COMMANDS

from tests.kit.markdown import ROOT, quoted, rows_of

PAGE = ROOT / "docs" / "promises.md"
COUNTS = {"A": 44, "B": 29, "C": 7, "D": 17, "E": 17, "F": 21, "G": 25}
ROWS = [row for section in rows_of(PAGE).values() for row in section if "#" in row]
TEST = re.compile(r"(tests/[\w/]+\.py)::(\w+)(?:\[(\w+)\])?")
LINK, WORDS = re.compile(r"\]\(([\w./-]+)\)"), re.compile(r'"([^"]+)"')
RECIPES = re.findall(r"^([a-z-]+)[ :]", (ROOT / "justfile").read_text("utf-8"), re.M)


@cache
def names_in(file: str) -> tuple[frozenset[str], frozenset[str]]:
    """Return the functions and the texts of a test file."""
    nodes = [*ast.walk(ast.parse((ROOT / file).read_text("utf-8")))]
    functions = {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    texts = {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    return frozenset(functions), frozenset(texts)


@cache
def texts_of_the_program() -> tuple[str, ...]:
    """Return every text in the sources of the product; of a text with values in it, the parts between them."""
    found: list[str] = []
    for file in sorted([*ROOT.glob("packages/*/src/**/*.py"), *ROOT.glob("apps/*/src/**/*.py")]):
        tree = ast.parse(file.read_text("utf-8"))
        found += [
            node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)
        ]
    return tuple(found)


def is_there(test: str) -> bool:
    """Tell whether the test with the id `test` exists."""
    match = TEST.fullmatch(test)
    if not match or not (ROOT / match[1]).is_file():
        return False
    functions, texts = names_in(match[1])
    return match[2] in functions and (match[3] is None or match[3] in texts)


def is_said(words: str) -> bool:
    """Tell whether the program says `words`, in which `...` stands for values."""
    return all(any(part in text for text in texts_of_the_program()) for part in words.split("..."))


def shows(row: dict[str, str]) -> list[str]:
    """Return the tests, commands and pages of a row."""
    commands = [text for text in quoted(row["shown by"]) if text.startswith(("just ", "tests/"))]
    return [*commands, *LINK.findall(row["shown by"])]


def test_all_rows_are_there() -> None:
    assert [row["#"] for row in ROWS] == [f"{part}{n}" for part, most in COUNTS.items() for n in range(1, most + 1)]


def exists(shown: str) -> bool:
    """Tell whether a test, command or page of a row exists."""
    if shown.startswith("tests/"):
        return is_there(shown)
    return shown.split()[1] in RECIPES if shown.startswith("just ") else (PAGE.parent / shown).exists()


def test_verdict_has_what_it_needs() -> None:
    for row in ROWS:
        verdict, said = row["verdict"].strip("`"), row["shown by"]
        assert verdict in ("works", "refused", "open"), row
        assert shows(row) or (verdict == "open" and said), row
        assert verdict != "refused" or WORDS.search(said), row


def test_what_shows_a_promise_exists() -> None:
    assert [(row["#"], shown) for row in ROWS for shown in shows(row) if not exists(shown)] == []


def test_words_in_quotation_marks_are_the_programs() -> None:
    said = [(row["#"], words) for row in ROWS for words in WORDS.findall(row["shown by"])]
    assert len(said) > 10
    assert [(number, words) for number, words in said if not is_said(words)] == []


def test_commands_of_orl_exist() -> None:
    for text in quoted(PAGE.read_text("utf-8")):
        if text.startswith("orl "):
            assert text.split()[1] in COMMANDS


@pytest.mark.parametrize(
    "test",
    ["tests/core/test_reward.py::test_clampz", "tests/core/test_rewards.py::test_clamps", "tests/core/test_reward.py"],
)
def test_negative_control_a_test_that_is_gone_is_found(test: str) -> None:
    assert not is_there(test)


def test_negative_control_words_of_nobody_are_found() -> None:
    assert is_said("this machine has ... GPUs but the run needs ...")
    assert not is_said("this is said ... nowhere in the program")
