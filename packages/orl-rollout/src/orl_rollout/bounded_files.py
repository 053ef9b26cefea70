"""Files of a run, read within limits: what is larger than any of ours is refused, and what is no regular file.

The module knows nothing of what the files hold.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from orl_core.errors import ConfigError

MOST_BYTES = 16 << 20  # of a file that is read whole, or of one line


def open_regular(path: Path) -> BinaryIO:
    """Open the regular file at `path` to read bytes. A pipe or a device may have no end, or never begin.

    Raises:
        OSError: it cannot be opened, or is no regular file.
    """
    return open(path, "rb", opener=_opener)


def _opener(path: str, flags: int) -> int:
    file = os.open(path, flags | os.O_NONBLOCK)  # without it, a pipe waits for its writer
    if stat.S_ISREG(os.fstat(file).st_mode):
        return file
    is_folder = stat.S_ISDIR(os.fstat(file).st_mode)
    os.close(file)
    if is_folder:
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    raise OSError(errno.EINVAL, "it is no regular file but a pipe or a device: copy it to a file first", path)


def read_whole(path: Path, most: int = MOST_BYTES) -> bytes:
    """Return what the file at `path` holds.

    Raises:
        OSError: it cannot be read.
        ConfigError: it holds more than `most` bytes.
    """
    with open_regular(path) as file:
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
    with open_regular(path) as file:
        number = 0
        while line := file.readline(most + 1):
            number += 1
            if len(line) > most:
                raise ConfigError(f"{path}:{number}: the line is longer than {most:,} bytes")
            yield line
