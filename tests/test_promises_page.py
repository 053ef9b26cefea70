"""docs/promises.md: it is current, each row is shown by something that exists, and refusals are the program's words."""

from __future__ import annotations

import ast
import re
from functools import cache

from orl_launcher.main import COMMANDS

from tests.kit.markdown import ROOT, quoted
from tests.promises import Promise, load_promises, page, shown_by, tags_of

PAGE = ROOT / "docs" / "promises.md"
ROWS = load_promises().rows
LINK, WORDS = re.compile(r"\]\(([\w./-]+)\)"), re.compile(r'"([^"]+)"')
RECIPES = re.findall(r"^([a-z-]+)[ :]", (ROOT / "justfile").read_text("utf-8"), re.M)


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


def is_said(words: str) -> bool:
    """Tell whether the program says `words`, in which `...` stands for values."""
    return all(any(part in text for text in texts_of_the_program()) for part in words.split("..."))


def commands_and_pages(row: Promise) -> list[str]:
    """Return the commands of `just` and the pages of a row."""
    return [text for text in quoted(row.also) if text.startswith("just ")] + LINK.findall(row.also)


def exists(shown: str) -> bool:
    """Tell whether a command or page exists."""
    return shown.split()[1] in RECIPES if shown.startswith("just ") else (PAGE.parent / shown).exists()


def test_page_is_current() -> None:
    assert PAGE.read_text("utf-8") == page(), "run `just docs-config`"


def test_tags_name_rows() -> None:
    assert shown_by().keys() <= ROWS.keys()


def test_tags_are_read_at_the_end_and_above() -> None:
    source = (
        "def test_one() -> None:  # shows A1 B2\n    pass\n# shows C3\nasync def test_two(): ...\ndef test_3(): ...\n"
    )
    assert [*tags_of(source)] == [("test_one", ["A1", "B2"]), ("test_two", ["C3"])]


def test_verdict_has_what_it_needs() -> None:
    shown = shown_by()
    for number, row in ROWS.items():
        assert number in shown or commands_and_pages(row) or (row.verdict == "open" and row.also), number
        assert row.verdict != "refused" or WORDS.search(row.also), number


def test_what_shows_a_promise_exists() -> None:
    assert [(number, one) for number, row in ROWS.items() for one in commands_and_pages(row) if not exists(one)] == []


def test_words_in_quotation_marks_are_the_programs() -> None:
    said = [(number, words) for number, row in ROWS.items() for words in WORDS.findall(row.also)]
    assert len(said) > 10
    assert [(number, words) for number, words in said if not is_said(words)] == []


def test_commands_of_orl_exist() -> None:
    for text in quoted(PAGE.read_text("utf-8")):
        if text.startswith("orl "):
            assert text.split()[1] in COMMANDS


def test_negative_control_words_of_nobody_are_found() -> None:
    assert is_said("this machine has ... GPUs but the run needs ...")
    assert not is_said("this is said ... nowhere in the program")
