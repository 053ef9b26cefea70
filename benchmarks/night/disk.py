"""A small disk that fills, and has room again: a tmpfs, or where none can be mounted a limit on the size of files."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.night.processes import Program

BALLAST = "ballast"
MOUNT_SECONDS = 20.0


class SmallDisk:
    """The disk of `folder`. Without a disk of its own, the files of one program are limited instead."""

    def __init__(self, folder: Path, *, mounted: bool) -> None:
        self.folder = folder
        self._mounted = mounted

    def fill(self, running: Program, leave: int) -> None:
        """Leave at most `leave` bytes: on the disk, or for each file that the program writes."""
        if not self._mounted:
            resource.prlimit(running.pid, resource.RLIMIT_FSIZE, (leave, resource.RLIM_INFINITY))
            return
        with (self.folder / BALLAST).open("wb") as ballast:
            size = max(shutil.disk_usage(self.folder).free - leave, 0)
            os.posix_fallocate(ballast.fileno(), 0, size)

    def empty(self) -> None:
        """Make room again."""
        (self.folder / BALLAST).unlink(missing_ok=True)


@contextmanager
def small_disk(folder: Path, size: int) -> Generator[SmallDisk]:
    """Mount a disk of `size` bytes at the new folder, for the length of the block."""
    folder.mkdir()
    mounted = _runs("mount", "-t", "tmpfs", "-o", f"size={size}", "orl-night", str(folder))
    try:
        yield SmallDisk(folder, mounted=mounted)
    finally:
        if mounted:
            _runs("umount", "--lazy", str(folder))


def _runs(*words: str) -> bool:
    try:
        return not subprocess.run(words, check=False, capture_output=True, timeout=MOUNT_SECONDS).returncode
    except (OSError, subprocess.TimeoutExpired):
        return False
