"""A real disk that can be filled: a small tmpfs. Only root may mount it; the test is skipped otherwise."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

BALLAST = ".ballast"


@contextmanager
def small_disk(folder: Path, size: int = 64 << 20) -> Generator[Path]:
    """Mount an empty disk of `size` bytes at `folder` while the block runs."""
    folder.mkdir()
    mounting = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    if os.getuid() or subprocess.run(mounting, check=False, capture_output=True).returncode:
        pytest.skip("only root can mount a disk here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(disk: Path, *, but: int = 0) -> None:
    """Fill `disk` with one file, but for about `but` bytes."""
    free = os.statvfs(disk)
    size = free.f_bavail * free.f_frsize - but
    with (disk / BALLAST).open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, size)


def empty(disk: Path) -> None:
    """Remove the file that fills `disk`."""
    (disk / BALLAST).unlink()
