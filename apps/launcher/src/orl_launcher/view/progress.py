"""Progress of a run while it trains, read from metrics.jsonl as it grows, whichever trainer writes it.

A terminal gets a bar with the latest training batch and a line for each evaluation; other outputs get a line every few
steps. The reader is a thread, because trainers take the main one; it ends with the block.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from orl_rollout.run_folder.metrics_log import MetricsRow, parse_row

from orl_launcher.view.wording import MAIN_METRICS, duration

if TYPE_CHECKING:
    from rich.console import Console

PERIOD = 0.5  # seconds between looks at the file
LONGEST_LINE = 1 << 24  # bytes
EVERY = 5  # steps between lines where the output is no terminal


@contextmanager
def following(path: Path, steps: int | None, console: Console) -> Generator[None]:
    """Show the rows that are written to `path` (metrics.jsonl) while the block runs, of `steps` steps."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (BarColumn(bar_width=24), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task("evaluating before training", total=steps)
        ended = threading.Event()

        def follow() -> None:
            for row in _rows_of(path, ended):
                line = line_of(row, steps)
                if row.kind == "train":
                    progress.update(bar, completed=row.step, description=line)
                if row.kind == "eval" or not (console.is_terminal or row.step % EVERY):
                    console.print(line, soft_wrap=True)

        thread = threading.Thread(target=follow, name="progress", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()


def _rows_of(path: Path, ended: threading.Event) -> Iterator[MetricsRow]:
    """Yield each row of the file at `path` as it is appended, until `ended` and the last row."""
    offset = 0
    last = False
    while not last:
        last = ended.wait(PERIOD)
        if not path.is_file():
            continue
        with path.open("rb") as lines:
            lines.seek(offset)
            for line in iter(lambda: lines.readline(LONGEST_LINE), b""):
                if not line.endswith(b"\n"):
                    break
                offset += len(line)
                if (row := parse_row(line)) is not None:
                    yield row


@contextmanager
def counting(what: str, console: Console) -> Generator[Callable[[int, int], None]]:
    """Show a bar for work that reports `(done, total)`. Print `what` once, at the first report."""
    from rich.progress import Progress

    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task("", total=None, visible=False)

        def told(done: int, total: int) -> None:
            if not progress.tasks[bar].visible:
                console.print(what, soft_wrap=True)
            progress.update(bar, completed=done, total=total, visible=True)

        yield told


def line_of(row: MetricsRow, steps: int | None) -> str:
    """Write a row in one line: `step 12/45  success 52 %  reward 0.52  turns 3.2`."""
    step = f"step {row.step}/{steps}" if steps else f"step {row.step}"
    shown = [f"held-out at {step}" if row.kind == "eval" else step]
    for name, form in MAIN_METRICS:
        value = row.overall(name)
        if value is not None:
            shown.append(f"{name.replace('_', ' ')} {form(value)}")
    return "  ".join([*shown, duration(row.seconds)])
