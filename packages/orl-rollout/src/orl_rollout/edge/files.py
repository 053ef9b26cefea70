"""Files of a run, written in one step. The module knows nothing of their contents."""

from __future__ import annotations

import os
import uuid
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path


def cache_folder() -> Path:
    """Return the folder that orl keeps between runs: $ORL_CACHE, else `orl` in $XDG_CACHE_HOME, else in ~/.cache."""
    if own := os.environ.get("ORL_CACHE"):
        return Path(own)
    shared = os.environ.get("XDG_CACHE_HOME")
    return (Path(shared) if shared else Path.home() / ".cache") / "orl"


def read_lines(path: Path) -> Iterator[bytes]:
    """Yield the lines of the file at `path`, each with its end."""
    with path.open("rb") as file:
        yield from file


def replace(path: Path, content: bytes) -> None:
    """Replace the file `path` by `content` in one step. A crash in the middle leaves the old file."""
    with _beside(path, content) as fresh:
        fresh.replace(path)


def write_new(path: Path, content: bytes) -> None:
    """Write `content` to a new file `path` in one step.

    Raises:
        FileExistsError: there is one already. It is not changed.
    """
    with _beside(path, content) as fresh:
        path.hardlink_to(fresh)


@contextmanager
def _beside(path: Path, content: bytes) -> Generator[Path]:
    fresh = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        fresh.write_bytes(content)
        yield fresh
    finally:
        fresh.unlink(missing_ok=True)
