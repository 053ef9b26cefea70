"""Write docs/promises.md from tests/promises.yaml and the tests that show its rows: `just docs-config`.

A test names the promises that it shows: `# shows A4 A31` at the end of its `def`, or on the line above.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct

ROOT = Path(__file__).parents[1]
PAGE, ROWS = ROOT / "docs" / "promises.md", Path(__file__).with_suffix(".yaml")
SHOWS = re.compile(r"# shows ((?:[A-G]\d+ ?)+)$")
TEST = re.compile(r"(?:async )?def (test_\w+)")


class Promise(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One row: what is promised, the verdict, and what shows it in addition to tests."""

    promise: str
    verdict: Literal["works", "refused", "open"] = "works"
    also: str = ""


class Part(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One table of the page."""

    title: str
    rows: dict[str, Promise]
    intro: str = ""


class Promises(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The page."""

    intro: str
    parts: tuple[Part, ...]

    @property
    def rows(self) -> dict[str, Promise]:
        """Return all rows by their number."""
        return {number: row for part in self.parts for number, row in part.rows.items()}


def load_promises() -> Promises:
    """Return the content of tests/promises.yaml."""
    return msgspec.yaml.decode(ROWS.read_bytes(), type=Promises)


def shown_by() -> dict[str, list[str]]:
    """Return the ids of the tests that show each promise."""
    shown: dict[str, list[str]] = {}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for test, numbers in tags_of(path.read_text("utf-8")):
            for number in numbers:
                shown.setdefault(number, []).append(f"{path.relative_to(ROOT).as_posix()}::{test}")
    return shown


def tags_of(source: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the name of each test of a file that shows promises, with their numbers."""
    above = ""
    for line in map(str.strip, source.splitlines()):
        test, tag = TEST.match(line), SHOWS.search(line) or SHOWS.search(above)
        if test and tag:
            yield test[1], tag[1].split()
        above = line if line.startswith("#") else ""


def page() -> str:
    """Return the text of the page."""
    promises, shown = load_promises(), shown_by()
    lines = [promises.intro.rstrip("\n") + "\n"]
    for part in promises.parts:
        lines += [f"## {part.title}\n"]
        lines += [part.intro] if part.intro else []
        lines += ["| # | promise | verdict | shown by |", "|---|---|---|---|"]
        for number, row in part.rows.items():
            tests = ", ".join(f"`{test}`" for test in shown.get(number, ()))
            lines.append(
                f"| {number} | {row.promise} | `{row.verdict}` | {'. '.join(filter(None, (tests, row.also)))} |"
            )
        lines.append("")
    return "\n".join(lines).rstrip("\n") + "\n"


if __name__ == "__main__":
    sys.exit(PAGE.write_text(page(), "utf-8") and 0)
