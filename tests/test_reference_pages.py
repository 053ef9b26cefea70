"""The pages of commands and errors hold what the program has."""

from __future__ import annotations

from pathlib import Path

import pytest
from orl_launcher.main import COMMANDS

from tests.reference import commands, errors


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


@pytest.mark.parametrize(
    ("raised", "expected"),
    [
        ('raise ConfigError(f"{file}: no such {kind!r}. Name " "another")', ["…: no such …. Name another"]),
        ('raise cli.UsageError("the name" + name + "is wrong")', ["the name…is wrong"]),
        ('raise KeyError("not one of ours")', []),
        ("raise ConfigError(mistakes)", []),
        ("raise", []),
    ],
)
def test_message_is_read_with_values_left_open(raised: str, expected: list[str], tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "module.py").write_text(raised, "utf-8")
    assert [*errors.messages(tmp_path)] == expected
