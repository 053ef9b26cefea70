"""Files of a run: read within limits, written in one step. Too large files are refused.

The module knows nothing of their contents.
"""

from __future__ import annotations

import uuid
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

from orl_core.errors import ConfigError

MOST_BYTES = 16 << 20  # of a file that is read whole, or of one line


def read_whole(path: Path, most: int = MOST_BYTES) -> bytes:
    """Return the content of the file at `path`.

    Raises:
        OSError: it cannot be read.
        ConfigError: it holds more than `most` bytes.
    """
    with path.open("rb") as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise ConfigError(f"{path}: larger than {most:,} bytes: this is no file of a run")
    return content


def read_lines(path: Path, most: int = MOST_BYTES) -> Iterator[bytes]:
    """Yield the lines of the file at `path`, each with its end.

    Raises:
        OSError: it cannot be read.
        ConfigError: a line is longer than `most` bytes.
    """
    with path.open("rb") as file:
        number = 0
        while line := file.readline(most + 1):
            number += 1
            if len(line) > most:
                raise ConfigError(f"{path}:{number}: the line is longer than {most:,} bytes")
            yield line


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
