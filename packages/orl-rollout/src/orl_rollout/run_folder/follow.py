"""Lines of a file of the run that is still written: a trainer's log, or metrics.jsonl."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

PERIOD = 0.5  # seconds between two looks
LONGEST_LINE = 1 << 20  # bytes; a longer line comes in pieces


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
