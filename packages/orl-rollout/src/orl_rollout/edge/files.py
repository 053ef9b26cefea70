"""Files of a run: written in one step, read while they grow. The module knows nothing of their contents."""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

PERIOD = 0.5  # seconds between two looks
LONGEST_LINE = 1 << 20  # bytes; a longer line comes in pieces


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
    """Write `content` to a new file `path` in one step."""
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


def lines_of(path: Path, ended: threading.Event, start: int = 0) -> Iterator[bytes | None]:
    """Yield the lines of `path` after the byte `start` as they are written, and None after each look.

    A line waits until it is whole. The last look comes once `ended` is set, and yields the rest as it is.
    """
    last = False
    while not last:
        last = ended.wait(PERIOD)
        if path.is_file():
            with path.open("rb") as file:
                file.seek(start)
                for line in iter(lambda: file.readline(LONGEST_LINE), b""):
                    if not line.endswith(b"\n") and len(line) < LONGEST_LINE and not last:
                        break
                    start += len(line)
                    yield line
        yield None


@contextmanager
def meanwhile(work: Callable[[threading.Event], None], name: str) -> Generator[None]:
    """Do `work` on a thread called `name` while the block runs. The event tells it that the block has ended."""
    ended = threading.Event()
    thread = threading.Thread(target=work, args=(ended,), name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
