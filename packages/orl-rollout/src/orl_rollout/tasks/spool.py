"""Rows on disk, found again by number, so that a million tasks are shuffled in little memory: about 130 bytes a task.

The module knows nothing of listings or seeds.
"""

from __future__ import annotations

import tempfile
import uuid
from array import array
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Self

import msgspec
from orl_core.task import Task, row_of


class Spool:
    """Rows of tasks, in a nameless file in `folder`; a task that was added before is counted and left out."""

    def __init__(self, folder: Path) -> None:
        self.counts: dict[str, int] = {}
        self.duplicates = 0
        self._file: IO[bytes] = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 - closed by __exit__
        self._offsets = array("Q")
        self._end = 0
        self._keys: set[int] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._file.close()

    def __len__(self) -> int:
        return len(self._offsets)

    def add(self, task: Task) -> bool:
        """Store the row of `task`; False where it is a duplicate."""
        row = row_of(task)
        key = int(row.prompt.rpartition("/")[2], 16)
        if key in self._keys:
            self.duplicates += 1
            return False
        self._keys.add(key)
        self._offsets.append(self._end)
        self._end += self._file.write(msgspec.json.encode(row, order="sorted") + b"\n")
        self.counts[task.env_name] = self.counts.get(task.env_name, 0) + 1
        return True

    def write(self, output: Path, order: Iterable[int]) -> None:
        """Write the rows in `order` beside `output`, then put them in its place in one step."""
        fresh = output.with_name(f".{output.name}.{uuid.uuid4().hex}")
        try:
            with fresh.open("xb") as file:  # who may read it is the umask's to say
                file.writelines(self._rows(order))
            fresh.replace(output)
        finally:
            fresh.unlink(missing_ok=True)

    def _rows(self, order: Iterable[int]) -> Iterator[bytes]:
        for number in order:
            self._file.seek(self._offsets[number])
            yield self._file.readline()
