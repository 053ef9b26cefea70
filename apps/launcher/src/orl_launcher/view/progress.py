"""A run, followed while it trains: metrics.jsonl is read as it grows, whoever writes it.

On a terminal there is a bar with the latest training batch and a line for each evaluation; elsewhere a line now and
then. The reader is a thread of its own, because trainers take the main one; it ends with the block.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from orl_rollout.run_folder.metrics_log import MetricsRow, parse_row

from orl_launcher.view.wording import duration, number, percent

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

PERIOD = 0.5  # seconds between looks at the file
LONGEST_LINE = 1 << 24  # bytes
EVERY = 5  # steps between lines where the output is no terminal


class _Follower:
    """Shows each new point once."""

    def __init__(self, path: Path, steps: int | None, progress: Progress) -> None:
        self.ended = threading.Event()
        self._path = path
        self._offset = 0
        self._steps = steps
        self._progress = progress
        self._bar = progress.add_task("measuring before training", total=steps)

    def follow(self) -> None:
        """Look until `ended`, and once more."""
        while not self.ended.wait(PERIOD):
            self.look()
        self.look()

    def look(self) -> None:
        """Show the lines that are complete and new."""
        if not self._path.is_file():
            return
        with self._path.open("rb") as lines:
            lines.seek(self._offset)
            for line in iter(lambda: lines.readline(LONGEST_LINE), b""):
                if not line.endswith(b"\n"):
                    break
                self._offset += len(line)
                point = parse_row(line)
                if point is not None:
                    self._show(point)

    def _show(self, point: MetricsRow) -> None:
        line = line_of(point, self._steps)
        if point.kind == "train":
            self._progress.update(self._bar, completed=point.step, description=line)
        quiet = self._progress.console.is_terminal or point.step % EVERY
        if point.kind == "eval" or not quiet:
            self._progress.console.print(line, soft_wrap=True)


@contextmanager
def following(path: Path, steps: int | None, console: Console) -> Generator[None]:
    """Show the points that are written to `path` (metrics.jsonl) while the block runs; `steps` is their number."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (BarColumn(bar_width=24), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        follower = _Follower(path, steps, progress)
        thread = threading.Thread(target=follower.follow, name="progress", daemon=True)
        thread.start()
        try:
            yield
        finally:
            follower.ended.set()
            thread.join()


@contextmanager
def counting(what: str, console: Console) -> Generator[Callable[[int, int], None]]:
    """A bar for work that tells `(done, total)` of its progress; `what` is printed once, when it first does."""
    from rich.progress import Progress

    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task("", total=None, visible=False)

        def told(done: int, total: int) -> None:
            if not progress.tasks[bar].visible:
                console.print(what, soft_wrap=True)
            progress.update(bar, completed=done, total=total, visible=True)

        yield told


def line_of(point: MetricsRow, steps: int | None) -> str:
    """One point in a line: `step 12/45  success 52 %  reward 0.52  turns 3.2`."""
    place = f"step {point.step}/{steps}" if steps else f"step {point.step}"
    shown = [f"held-out at {place}" if point.kind == "eval" else place]
    for name, form in (("success", percent), ("reward", number), ("valid_calls", percent), ("turns", number)):
        value = point.overall(name)
        if value is not None:
            shown.append(f"{name.replace('_', ' ')} {form(value)}")
    return "  ".join([*shown, duration(point.seconds)])
