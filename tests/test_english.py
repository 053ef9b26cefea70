"""The lint of English finds what it names, in texts and in names, and nothing in code between backticks."""

from pathlib import Path

from tools.english import findings


def test_translated_words_and_participles_are_found(tmp_path: Path):
    module = tmp_path / "packages" / "module.py"
    module.parent.mkdir()
    module.write_text('"""Return it where nothing stands."""\n\ntold = "the run goes on"  # there is none\n', "utf-8")
    assert [(line, text) for line, _, text in findings(module)] == [
        (1, "where nothing"),
        (1, "stands"),
        (3, "goes on"),
        (3, "told"),
    ]
    page = tmp_path / "page.md"
    page.write_text("It is beside `where it stands`.\n", "utf-8")
    assert [text for _, _, text in findings(page)] == ["beside"]
