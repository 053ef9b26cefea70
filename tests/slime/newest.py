"""Lays newer files over a checkout of slime 624b824a8: `python -m tests.slime.newest LIST FOLDER [SOURCES]`.

A line of LIST is a repository, a commit, a path, and the path in the checkout if that is another. It holds no
content: that is SOURCES/COMMIT/PATH, if there is such a file, else what git brings from the repository.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

ORIGIN = "https://github.com/"
LIST = Path(__file__).with_name("newest.txt")


class Newer(NamedTuple):
    """One file, and its place in the checkout."""

    repository: str
    commit: str
    path: str
    place: str

    def content(self, folder: Path, sources: Path | None) -> bytes:
        """Return the file's content."""
        if sources and (kept := sources / self.commit / self.path).is_file():
            return kept.read_bytes()
        git = ["git", "-C", str(folder)]
        subprocess.run([*git, "fetch", "--quiet", "--depth=1", ORIGIN + self.repository, self.commit], check=True)
        return subprocess.run([*git, "show", f"{self.commit}:{self.path}"], check=True, stdout=subprocess.PIPE).stdout


def listed(file: Path) -> list[Newer]:
    """Return the files that a list names."""
    rows = [line.split() for line in file.read_text(encoding="utf-8").splitlines()]
    return [Newer(repository, commit, path, *(place or [path])) for repository, commit, path, *place in rows]


def lay(file: Path, folder: Path, sources: Path | None = None) -> list[str]:
    """Write the files of a list into the checkout `folder` and return their places; none if one is not there."""
    contents = {one.place: one.content(folder, sources) for one in listed(file)}
    for place, content in contents.items():
        ast.parse(content, place)
        (folder / place).parent.mkdir(parents=True, exist_ok=True)
        (folder / place).write_bytes(content)
    return list(contents)


if __name__ == "__main__":
    print(*lay(*map(Path, sys.argv[1:])), sep="\n")
