"""Tables of our Markdown documents, for tests that hold them against the program."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
BACKTICKS = re.compile(r"`([^`]+)`")
FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_CELL = re.compile(r"(?<!\\)\|")


def rows_of(document: Path) -> dict[str, list[dict[str, str]]]:
    """Return the rows of each section's tables, by the section's heading; a row maps its columns to its cells."""
    found: dict[str, list[dict[str, str]]] = {}
    heading, columns = "", list[str]()
    for line in document.read_text("utf-8").splitlines():
        if line.startswith("#"):
            heading = line.lstrip("# ")
        cells = [cell.strip() for cell in _CELL.split(line)[1:-1]] if line.startswith("|") else []
        if not cells:
            columns = []
        elif not columns:
            columns = cells
        elif set("".join(cells)) - set("-:"):
            found.setdefault(heading, []).append(dict(zip(columns, cells, strict=True)))
    return found


def quoted(text: str) -> list[str]:
    """Return the texts between backticks in a line. tests/test_blocks.py reads fenced blocks."""
    return BACKTICKS.findall(FENCED.sub("", text))
